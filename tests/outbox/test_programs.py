"""`lisa-producer outbox`, as processes that are killed and frozen, and as commands."""

import os
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, func, inspect, select, update

from lisa_consumer import Consumer, ConsumerSettings
from lisa_producer import Producer, ProducerSettings
from lisa_producer.outbox import Outbox, Relay
from lisa_producer.outbox.table import LEASES, METADATA, ROWS, now_ms
from support import Server
from support.commands import Commands
from support.databases import Database
from support.metrics import metrics_url, probe, scrape
from support.processes import Process
from support.waiting import idle, wait_until

PROGRAM = str(Path(sys.executable).parent / "lisa-producer")


@pytest.fixture
def commands(redis_url: str, prefix: str) -> Commands:
    """Runs command lines as operators type them."""
    return Commands(redis_url, prefix)


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Starts relays as programs, with a lease of a second."""
    with ExitStack() as stack:
        count = 0

        def start(engine: Engine, redis_url: str, *options: str, **more: str) -> Process:
            nonlocal count
            count += 1
            url = engine.url.render_as_string(hide_password=False)
            environment = {**os.environ, "DATABASE_URL": url, "LISA_REDIS_URL": redis_url, **more}
            command = [PROGRAM, "outbox", "run", "--lease-s", "1", "--poll-s", "0.1", "--timeout-s", "2", *options]
            process = Process(command, environment, tmp_path / f"relay-{count}.log")
            stack.callback(process.kill)
            return process

        yield start


@pytest.mark.long
@pytest.mark.parametrize("engine", ["postgresql", "mariadb"], indirect=True)
def test_each_committed_row_is_one_message(
    engine: Engine, own_server: Callable[..., Server], started: Callable[..., Process]
) -> None:
    """While relays are killed and frozen, and Redis is killed; each rolled-back row is none."""
    server = own_server(appendonly="yes", appendfsync="always")
    relays = [started(engine, server.url) for _ in range(2)]
    outbox, chance = Outbox(), random.Random(7)
    wanted, none, last, got = set[str](), set[str](), dict[str, bytes](), Counter[str]()
    settings = ConsumerSettings(redis_url=server.url, patience_s=20)
    with Consumer("orders", "billing", settings=settings) as consumer:

        def handle() -> None:
            deliveries = consumer.read(500)
            got.update(delivery.id for delivery in deliveries)
            consumer.ack(*deliveries)

        for turn in range(240):
            with engine.connect() as connection:
                ids = {outbox.send(connection, "orders", turn) for _ in range(chance.randint(1, 20))}
                later, body = f"later-{turn % 20}", b"%d" % turn
                outbox.cancel(connection, "later", later)
                outbox.send(connection, "later", body, id=later, delay=900)
                if chance.random() < 0.2:
                    connection.rollback()
                    none |= ids
                else:
                    connection.commit()
                    wanted |= ids
                    last[later] = body
            if turn % 20 == 10:
                victim = chance.randrange(2)
                relays[victim].kill()
                relays[victim] = started(engine, server.url)
            if turn % 60 == 30:
                relays[0].freeze()
            if turn % 60 == 50:
                relays[0].thaw()
            if turn == 120:
                server.kill()
                server.start()
            idle(0.02)
            handle()

        def is_empty() -> bool:
            handle()
            with engine.connect() as connection:
                return not connection.scalar(select(func.count()).select_from(ROWS))

        wait_until(is_empty, 60)
        for relay in relays:
            relay.wait_for("relay serves the outbox")
            assert relay.stop() == 0, relay.log
        handle()
    assert wanted == got.keys()
    assert not none & got.keys()
    assert set(got.values()) == {1}
    with Producer(settings=ProducerSettings(redis_url=server.url)) as producer:
        found = {id: producer.find("later", id) for id in last}
    assert {id: each.record.body for id, each in found.items() if each and each.record} == last


def test_the_ddl_creates_the_tables(engine: Engine, commands: Commands) -> None:
    """Those that SQLAlchemy would create."""
    kind = engine.dialect.name
    with engine.begin() as connection:
        for table in ("lisa_outbox", "lisa_outbox_lease"):
            connection.exec_driver_sql(f"DROP TABLE {table}")
        for statement in commands.producer("outbox", "ddl", "--dialect", kind).out.split(";\n"):
            if statement.strip():
                connection.exec_driver_sql(statement)
    assert {column["name"] for column in inspect(engine).get_columns("lisa_outbox")} == {*ROWS.c.keys()}
    with engine.begin() as connection:
        Outbox().send(connection, "orders", 1)
    assert commands.producer("outbox", "ddl", "--dialect", "oracle").code == 2


def test_the_status_says_what_waits(engine: Engine, commands: Commands) -> None:
    """And ends with 1 where rows were set aside, 2 where the database does not answer."""
    url = engine.url.render_as_string(hide_password=False)
    with engine.begin() as connection:
        for _ in range(3):
            Outbox().send(connection, "orders", 1)
    ran = commands.producer("outbox", "status", "--json", DATABASE_URL=url)
    assert ran.code == 0
    assert (ran.document["waiting"], ran.document["set_aside"]) == (3, 0)
    with engine.begin() as connection:
        connection.execute(update(ROWS).where(ROWS.c.id == 1).values(error="refused"))
    ran = commands.producer("outbox", "status", "--database", url)
    assert ran.code == 1
    assert ran.out.startswith("waiting 2, the oldest for ")
    assert ran.out.endswith("; set aside 1\n")
    for wrong in ("nonsense", "oracle://u:secret@localhost/x", "postgresql://u:p@ss:secret@h/x", "sqlite:////nowhere"):
        ran = commands.producer("outbox", "status", "--database", wrong)
        assert ran.code == 2
        assert "secret" not in ran.err


def test_a_database_that_is_misspelt_is_not_made(commands: Commands, tmp_path: Path) -> None:
    """One line."""
    for words in (("status",), ("check",), ("run",)):
        ran = commands.producer("outbox", *words, "--database", f"sqlite:///{tmp_path}/typo.db")
        assert (ran.code, ran.err.count("\n")) == (2, 1)
        assert ran.err.startswith("lisa-producer: database must be a file that exists; got 'sqlite:///")
    assert list(tmp_path.iterdir()) == []
    assert "(ArgumentError: Could not parse" in commands.producer("outbox", "status", "--database", "").err


def test_what_a_driver_says_is_one_line(commands: Commands) -> None:
    """Without its line breaks and tabs."""
    ran = commands.producer("outbox", "status", "--database", "postgresql+psycopg://nobody@127.0.0.1:1/none")
    assert (ran.code, ran.err.count("\n"), "\\t" in ran.err) == (2, 1, False)
    assert "Is the server running" in ran.err


def test_a_relay_ends_at_a_signal(redis_url: str, started: Callable[..., Process]) -> None:
    """With 0, also while its database is away."""
    relay = started(create_engine("postgresql+psycopg://nobody@127.0.0.1:1/nothing"), redis_url)
    relay.wait_for("the outbox relays nothing: database")
    assert relay.stop() == 0


@pytest.mark.slow
def test_a_relay_serves_its_metrics_and_its_health(
    *,
    postgres: Engine,
    redis_url: str,
    prefix: str,
    started: Callable[..., Process],
    declare: Callable[..., object],
    producer: Producer,
    servers: Callable[[str], Database],
) -> None:
    """Rows by state, their age, and what was sent; it is ready while the database answers and Redis takes all."""
    declare(max_messages=1)
    with postgres.begin() as connection:
        for number in range(3):
            Outbox().send(connection, "orders", 1, delay=600, id=f"order-{number}")
        Outbox().send(connection, "other", "sent")
        connection.execute(update(ROWS).where(ROWS.c.id == 3).values(command="nonsense", topic="poison"))
    relay = started(postgres, redis_url, "--metrics", "127.0.0.1:0", LISA_PREFIX=prefix)
    relay.wait_for("serving metrics at", 60)
    url = metrics_url(relay)
    wait_until(lambda: "outbox: orders: orders holds 1 messages" in probe(url, "/readyz")[1])
    wait_until(lambda: probe(url, "/readyz")[0] == 503 and scrape(url).sum("lisa_outbox_rows", state="set_aside"), 20)
    wait_until(lambda: scrape(url).sum("lisa_outbox_rows", state="waiting") == 1, 20)
    assert scrape(url).sum("lisa_outbox_oldest_seconds") > 0
    assert scrape(url).sum("lisa_sent_total", topic="other", outcome="sent") == 1
    producer.cancel("orders", "order-0")
    wait_until(lambda: probe(url, "/readyz") == (200, "ok\n"), 20)
    wait_until(lambda: scrape(url).sum("lisa_outbox_rows", state="waiting") == 0)
    assert scrape(url).sum("lisa_outbox_oldest_seconds") == 0
    servers("postgresql").kill()
    try:
        wait_until(lambda: "outbox: database: " in probe(url, "/readyz")[1], 20)
        assert "lisa_outbox_rows" not in {sample.name for sample in scrape(url).samples}
        assert probe(url, "/livez")[0] == 200
    finally:
        servers("postgresql").start()
    wait_until(lambda: probe(url, "/readyz")[0] == 200, 20)


def test_the_check_names_what_is_wrong_with_the_tables(engine: Engine, commands: Commands) -> None:
    """A missing index, column or table, each with the remedy; and nothing where all is well."""
    url = engine.url.render_as_string(hide_password=False)
    kind = engine.dialect.name

    def check() -> list[str]:
        ran = commands.producer("outbox", "check", "--database", url)
        assert ran.code == int(ran.out != "the outbox is well\n")
        return ran.out.splitlines()

    assert check() == ["the outbox is well"]
    see = f"see lisa-producer outbox ddl --dialect {kind}"
    with engine.begin() as connection:
        on = "" if kind in ("postgresql", "sqlite") else " ON lisa_outbox"
        connection.exec_driver_sql(f"DROP INDEX lisa_outbox_waiting{on}")
        connection.exec_driver_sql("ALTER TABLE lisa_outbox DROP COLUMN options")
    assert check() == [
        f"table lisa_outbox has no column options: another release has created it; {see}",
        f"table lisa_outbox has no index lisa_outbox_waiting, so relays read all of it; {see}",
    ]
    METADATA.drop_all(engine)
    missing = [f"table {name} is missing; {see}" for name in ("lisa_outbox", "lisa_outbox_lease")]
    assert check() == missing
    assert commands.producer("outbox", "check", "--database", url, "--json").document == {"problems": missing}


def test_the_check_finds_rows_that_nobody_relays(
    engine: Engine, commands: Commands, relays: Callable[..., Relay], declare: Callable[..., object]
) -> None:
    """Those that were set aside, those that no relay works on, and those that Redis does not take."""
    url = engine.url.render_as_string(hide_password=False)

    def check() -> str:
        ran = commands.producer("outbox", "check", DATABASE_URL=url)
        assert ran.code == 1
        return re.sub("for [0-9]+ s", "for 90 s", ran.out)

    with engine.begin() as connection:
        for _ in range(3):
            Outbox().send(connection, "orders", 1)
        connection.execute(update(ROWS).values(created_ms=now_ms() - 90_000))
        connection.execute(update(ROWS).where(ROWS.c.id == 1).values(error="it\nis refused"))
    declare(max_messages=1)
    aside = "1 rows for orders are set aside, the first (id 1) because it\\nis refused\n"
    wait = "2 rows for orders wait, the oldest for 90 s, and "
    assert check() == f"{aside}{wait}no relay works on them: start lisa-producer outbox run\n"
    assert relays(engine).relay_once() == 0
    assert relays(engine).relay_once() == 0
    assert check() == f"{aside}{wait}a relay has tried: its log and /readyz say why\n"
    with engine.begin() as connection:
        connection.execute(update(LEASES).values(until_ms=now_ms() - 61_000))
    assert check() == f"{aside}{wait}no relay works on them: start lisa-producer outbox run\n"
