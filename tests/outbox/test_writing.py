"""Commands are written with the caller's transaction, checked as a producer checks them."""

import sqlite3
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest
from sqlalchemy import Engine, create_engine, event, func, select
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from lisa_common.validation import MAX_HEADERS_BYTES
from lisa_producer import InvalidInput, Message, Producer, ProducerSettings, State
from lisa_producer.outbox import Outbox, Relay
from lisa_producer.outbox.table import METADATA, ROWS
from support.waiting import idle, wait_until


def count(engine: Engine) -> int:
    """The rows in the outbox."""
    with engine.connect() as connection:
        return connection.scalar(select(func.count()).select_from(ROWS)) or 0


def connected(engine: Engine) -> Any:
    """A connection of the driver's own."""
    url = engine.url
    if engine.dialect.name == "sqlite":
        return sqlite3.connect(str(url.database))
    if engine.dialect.name == "postgresql":
        return psycopg.connect(host=url.host, port=url.port, user=url.username, dbname=url.database)
    return pymysql.connect(host=url.host, port=url.port or 0, user=url.username, database=url.database)


@pytest.mark.parametrize("kind", ["connection", "session", "scoped session", "driver"])
def test_a_commit_sends_and_a_rollback_does_not(
    kind: str, engine: Engine, producer: Producer, relays: Callable[..., Relay]
) -> None:
    """By connections and sessions of SQLAlchemy, and by drivers."""
    outbox, relay = Outbox(), relays(engine)
    make = {
        "connection": engine.connect,
        "session": lambda: Session(engine),
        "scoped session": lambda: scoped_session(sessionmaker(engine)),
        "driver": lambda: connected(engine),
    }[kind]
    connection: Any = make()
    rolled_back = outbox.send(connection, "orders", {"order": 6}, delay=900)
    connection.rollback()
    assert count(engine) == 0
    sent = outbox.send(connection, "orders", {"order": 7}, delay=900)
    outbox.send(connection, "orders", b"\x00\xff", delay=900, id="order-8")
    assert relay.relay_once() == 0
    connection.commit()
    assert relay.relay_once() == 2
    connection.close()
    assert producer.find("orders", rolled_back) is None
    for id, body in ((sent, b'{"order":7}'), ("order-8", b"\x00\xff")):
        found = producer.find("orders", id)
        assert found
        assert found.record
        assert found.record.body == body
    assert count(engine) == 0


@pytest.mark.parametrize("by_driver", [False, True], ids=["sqlalchemy", "driver"])
def test_many_messages_are_sent_at_once(
    by_driver: bool,  # noqa: FBT001
    engine: Engine,
    producer: Producer,
    relays: Callable[..., Relay],
) -> None:
    """Each with its own options, in their order; an invalid one is refused before any row is written."""
    outbox = Outbox()
    messages = [
        Message(body=1, delay=60),
        Message(body="two", delay=60, id="order-2", headers={"a": "b"}),
        Message(body=b"3", delay=60, id="order-2", if_exists="replace"),
        *(Message(body=n, delay=60, id=f"many-{n}") for n in range(200)),
    ]
    connection: Any = connected(engine) if by_driver else engine.connect()
    statements: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    for wrong in (Message(body=1, delay=-1), {"body": 1}):
        with pytest.raises(InvalidInput):
            outbox.send_many(connection, "orders", [*messages, wrong])  # type: ignore[list-item]
    ids = outbox.send_many(connection, "orders", iter(messages))
    # In PostgreSQL, another one takes the locks of all ids.
    assert by_driver or len(statements) == 1 + (engine.dialect.name == "postgresql")
    assert outbox.send_many(connection, "orders", []) == []
    connection.commit()
    connection.close()
    assert len(set(ids)) == 202
    assert ids[1] == ids[2] == "order-2"
    relay = relays(engine)
    assert sum(iter(relay.relay_once, 0)) == 203
    for id, body in ((ids[0], b"1"), ("order-2", b"3"), (ids[-1], b"199")):
        found = producer.find("orders", id)
        assert found
        assert found.record
        assert found.record.body == body


async def test_sessions_of_asyncio(postgres: Engine, producer: Producer, relays: Callable[..., Relay]) -> None:
    """They call the outbox by `run_sync`."""
    engine, outbox = create_async_engine(postgres.url), Outbox()
    async with AsyncSession(engine) as session:
        id = await session.run_sync(outbox.send, "orders", "text", delay=60)
        await session.commit()
        with pytest.raises(InvalidInput, match="connection must be a connection or session of SQLAlchemy"):
            outbox.send(session, "orders", "text")
    async with engine.begin() as connection:
        await connection.run_sync(outbox.reschedule, "orders", id, delay=900)
    await engine.dispose()
    assert relays(postgres).relay_once() == 2
    found = producer.find("orders", id)
    assert found
    assert found.due_ms
    assert found.due_ms > datetime.now(UTC).timestamp() * 1000 + 600_000


def test_everything_that_a_send_takes_arrives(engine: Engine, producer: Producer, relays: Callable[..., Relay]) -> None:
    """The record is that of a producer's own send."""
    at = datetime.now(UTC) + timedelta(hours=3)
    options: list[dict[str, Any]] = [
        {"body": {"größe": [1, None]}, "headers": {"Ünï": "\0 \u2028 %s %(x)s :x"}, "key": "customer-7"},
        {"body": b"\x00\x80' \\", "ttl": 0.25, "max_retries": 0, "priority": 255},
        {"body": "100 % text", "ttl": timedelta(days=3), "priority": 0, "max_retries": 1_000},
        {"body": "", "id": "ids may hold % and : and ' and ü"},
        {"body": "x" * 100_000, "id": "q\\", "if_exists": "replace"},
    ]
    outbox = Outbox()
    for given in options:
        body = given.pop("body")
        with engine.begin() as connection:
            id = outbox.send(connection, "orders", body, at=at, **given)
        assert relays(engine).relay_once() == 1
        twin = producer.send("twins", body, at=at, **given)
        found, wanted = producer.find("orders", id), producer.find("twins", str(twin.id))
        assert found
        assert wanted
        assert found.record
        assert wanted.record
        assert found.record._replace(sent_ms=0) == wanted.record._replace(sent_ms=0)


class Codec:
    """Turns values into their repr."""

    def encode(self, value: Any) -> bytes:
        """Encode."""
        return repr(value).encode()

    def decode(self, data: bytes) -> Any:
        """Decode."""
        raise NotImplementedError


def test_a_codec_encodes_bodies(postgres: Engine, producer: Producer, relays: Callable[..., Relay]) -> None:
    """As that of a producer does."""
    with postgres.begin() as connection:
        id = Outbox(codec=Codec()).send(connection, "orders", {1}, delay=60)
    relays(postgres).relay_once()
    found = producer.find("orders", id)
    assert found
    assert found.record
    assert found.record.body == b"{1}"


WRONG: list[dict[str, Any]] = [
    {"topic": "no spaces"},
    {"topic": 7},
    {"body": {1, 2}},
    {"body": float("nan")},
    {"body": Message(body=1)},
    {"delay": -1},
    {"delay": 1, "at": datetime.now(UTC)},
    {"at": datetime.now()},  # noqa: DTZ005 - that is what is wrong
    {"at_local": "2031-01-01T00:00:00"},
    {"tz": "Europe/Berlin"},
    {"id": "ends in ~"},
    {"id": "x" * 201},
    {"ttl": 0},
    {"max_retries": -1},
    {"priority": 256},
    {"headers": {"a": 1}},
    {"headers": {"a": "x" * MAX_HEADERS_BYTES}},
    {"key": ""},
    {"if_exists": "replace"},
    {"if_exists": "ignore", "id": "x"},
]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: str(wrong)[:30])
def test_what_a_producer_refuses_is_refused_alike(wrong: dict[str, Any], postgres: Engine, producer: Producer) -> None:
    """Before a row is written; the transaction goes on."""
    given = {"topic": "orders", "body": 1} | wrong
    with pytest.raises(InvalidInput) as wanted:
        producer.send(given["topic"], given["body"], **{k: v for k, v in given.items() if k not in {"topic", "body"}})
    with postgres.begin() as connection:
        with pytest.raises(InvalidInput) as got:
            Outbox().send(connection, **given)
        assert connection.scalar(select(func.count()).select_from(ROWS)) == 0
    assert str(got.value) == str(wanted.value)


@pytest.mark.parametrize(
    ("topic", "id", "due"),
    [
        ("no spaces", "x", {"delay": 1}),
        ("orders", "", {"delay": 1}),
        ("orders", "x", {}),
        ("orders", "x", {"delay": -1}),
    ],
)
def test_changes_are_checked_alike(
    topic: str, id: str, due: dict[str, Any], postgres: Engine, producer: Producer
) -> None:
    """Cancels and reschedules."""
    outbox = Outbox()
    with postgres.begin() as connection:
        with pytest.raises(InvalidInput) as wanted:
            producer.reschedule(topic, id, **due)
        with pytest.raises(InvalidInput) as got:
            outbox.reschedule(connection, topic, id, **due)
        assert str(got.value) == str(wanted.value)
        if due.get("delay") == 1:
            with pytest.raises(InvalidInput):
                outbox.cancel(connection, topic, id)
    assert count(postgres) == 0


class Traced:
    """A connection behind a proxy that tells its class, as libraries that trace make them."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __getattribute__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "_connection"), name)


class Named(sqlite3.Connection):
    """A connection of a program's own class."""


def test_connections_of_other_classes(tmp_path: Path, relays: Callable[..., Relay]) -> None:
    """Subclasses and proxies are connections of their driver."""
    engine = create_engine(f"sqlite:///{tmp_path}/outbox.db")
    METADATA.create_all(engine)
    for connection in (sqlite3.connect(f"{tmp_path}/outbox.db", factory=Named), Traced(connected(engine))):
        Outbox().send(connection, "orders", 1)
        connection.commit()
        connection.close()
    assert relays(engine).relay_once() == 2
    engine.dispose()


class Asynchronous(psycopg.AsyncConnection[Any]):
    """One of asyncio, of a program's own class."""


@pytest.mark.parametrize("wrong", [None, "postgresql://localhost", object(), Asynchronous.__new__(Asynchronous)])
def test_only_connections_are_taken(wrong: Any) -> None:
    """Anything else is refused."""
    with pytest.raises(InvalidInput, match="connection must be a connection or session of SQLAlchemy"):
        Outbox().send(wrong, "orders", 1)


def test_a_delay_counts_from_the_send(engine: Engine, producer: Producer, relays: Callable[..., Relay]) -> None:
    """Neither from the begin of the transaction, nor from the relay; and a message is never early."""
    with engine.begin() as connection:
        connection.execute(select(1))
        idle(0.3)
        sent_ms = datetime.now(UTC).timestamp() * 1000
        id = Outbox().send(connection, "orders", 1, delay=60)
        after_ms = datetime.now(UTC).timestamp() * 1000
    idle(0.3)
    relays(engine).relay_once()
    found = producer.find("orders", id)
    assert found
    assert found.due_ms
    # Redis cuts its own time to ms.
    assert sent_ms - 1 < found.due_ms - 60_000 < after_ms + 200


def test_a_due_time_that_passed_is_now(postgres: Engine, producer: Producer, relays: Callable[..., Relay]) -> None:
    """An outage makes messages late, and loses none."""
    with postgres.begin() as connection:
        id = Outbox().send(connection, "orders", 1, delay=0.01)
    idle(0.1)
    relays(postgres).relay_once()
    found = producer.find("orders", id)
    assert found
    assert found.state is State.READY


def test_a_transaction_waits_for_another_with_the_same_id(
    postgres: Engine, producer: Producer, relays: Callable[..., Relay]
) -> None:
    """So their rows are in the order of their commits; other ids do not wait."""
    outbox = Outbox()
    cancelled = threading.Event()

    def cancel() -> None:
        with postgres.begin() as connection:
            outbox.cancel(connection, "orders", "order-7")
        cancelled.set()

    with postgres.begin() as connection:
        outbox.send(connection, "orders", 1, id="order-7", delay=60)
        thread = threading.Thread(target=cancel)
        thread.start()
        with postgres.begin() as other:
            outbox.cancel(other, "orders", "order-8")
        assert not cancelled.wait(0.3)
    assert cancelled.wait(60)
    thread.join()
    relays(postgres).relay_once()
    assert producer.find("orders", "order-7") is None


def test_a_hint_makes_a_relay_look(
    postgres: Engine, producer: Producer, relays: Callable[..., Relay], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relay in the same process does not wait for its next poll, however seldom it polls."""
    # After a look that finds nothing the next ones come after 0.5 and 50 s: a hint comes before its commit.
    monkeypatch.setattr("lisa_producer.outbox.relay._SLOWER", 100)
    relay = relays(postgres, poll=60)
    outbox = Outbox(hint=relay.wake)
    thread = threading.Thread(target=relay.run)
    thread.start()
    try:
        for connection in (Session(postgres), postgres.connect()):
            idle(1)  # the next look is 50 s away
            with connection:
                id = outbox.send(connection, "orders", 1, delay=60)
                connection.commit()
            wait_until(lambda id=id: producer.find("orders", id), 20)  # type: ignore[misc]
    finally:
        relay.stop()
        thread.join()


@pytest.mark.parametrize("by_driver", [False, True], ids=["sqlalchemy", "driver"])
def test_a_notification_makes_a_relay_look(
    *,
    by_driver: bool,
    postgres: Engine,
    producer: Producer,
    relays: Callable[..., Relay],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However seldom it polls."""
    monkeypatch.setattr("lisa_producer.outbox.relay._FIRST_POLL_S", 60)
    relay = relays(postgres, poll=60, listen=True)
    outbox = Outbox(notify=True)
    thread = threading.Thread(target=relay.run)
    thread.start()
    connection: Any = connected(postgres) if by_driver else postgres.connect()
    try:
        for _ in range(3):
            id = outbox.send(connection, "orders", 1, delay=60)
            connection.commit()
            wait_until(lambda id=id: producer.find("orders", id), 20)  # type: ignore[misc]
            idle(0.3)  # the look that finds nothing more is over, and the next one is a minute away
    finally:
        connection.close()
        relay.stop()
        thread.join()


def test_only_postgresql_is_listened_to(engine: Engine, settings: ProducerSettings) -> None:
    """A relay of another database says so."""
    if engine.dialect.name == "postgresql":
        return
    with pytest.raises(InvalidInput, match="listen must be False, unless the database is PostgreSQL by psycopg 3"):
        Relay(engine, settings=settings, listen=True)
