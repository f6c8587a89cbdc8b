"""`lisa-producer outbox`, as processes that are killed and frozen, and as commands."""

import os
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, func, inspect, select, update

from lisa_consumer import Consumer, ConsumerSettings
from lisa_producer import Producer, ProducerSettings
from lisa_producer.outbox import Outbox
from lisa_producer.outbox.table import ROWS
from support import Server
from support.commands import Commands
from support.processes import Process
from support.waiting import idle, wait_until

PROGRAM = str(Path(sys.executable).parent / "lisa-producer")


@pytest.fixture
def commands(redis_url: str, prefix: str) -> Commands:
    """Runs command lines as operators type them."""
    return Commands(redis_url, prefix)


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[[Engine, str], Process]]:
    """Starts relays as programs, with a lease of a second."""
    with ExitStack() as stack:
        count = 0

        def start(engine: Engine, redis_url: str) -> Process:
            nonlocal count
            count += 1
            url = engine.url.render_as_string(hide_password=False)
            environment = {**os.environ, "DATABASE_URL": url, "LISA_REDIS_URL": redis_url}
            command = [PROGRAM, "outbox", "run", "--lease-s", "1", "--poll-s", "0.1", "--timeout-s", "2"]
            process = Process(command, environment, tmp_path / f"relay-{count}.log")
            stack.callback(process.kill)
            return process

        yield start


@pytest.mark.long
@pytest.mark.parametrize("engine", ["postgresql", "mariadb"], indirect=True)
def test_each_committed_row_is_one_message(
    engine: Engine, own_server: Callable[..., Server], started: Callable[[Engine, str], Process]
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
    for wrong in ("nonsense", "oracle://u:secret@localhost/x", "sqlite:////nowhere/at/all.db"):
        ran = commands.producer("outbox", "status", "--database", wrong)
        assert ran.code == 2
        assert "secret" not in ran.err


def test_a_relay_ends_at_a_signal(redis_url: str, started: Callable[[Engine, str], Process]) -> None:
    """With 0, also while its database is away."""
    relay = started(create_engine("postgresql+psycopg://nobody@127.0.0.1:1/nothing"), redis_url)
    relay.wait_for("the outbox relays nothing: database")
    assert relay.stop() == 0
