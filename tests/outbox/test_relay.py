"""Relays: order, repeats, several of them, poison, full topics, and everything that dies."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Engine, event, func, insert, select, text, update
from sqlalchemy.exc import DBAPIError

from lisa_producer import Message, Producer, ProducerSettings, State
from lisa_producer.outbox import Outbox, Relay
from lisa_producer.outbox.inspection import read_backlog
from lisa_producer.outbox.table import LEASES, ROWS, now_ms
from support import Server
from support.databases import Database
from support.proxy import Proxy
from support.stored import body_of
from support.waiting import idle, wait_until, wait_until_async


def count(engine: Engine) -> int:
    """The rows in the outbox."""
    with engine.connect() as connection:
        return connection.scalar(select(func.count()).select_from(ROWS)) or 0


def lease_left_ms(engine: Engine) -> int:
    """How long the lease on a topic lasts."""
    with engine.connect() as connection:
        return connection.scalar(select(LEASES.c.until_ms - now_ms())) or 0


def end_lease(engine: Engine) -> None:
    """Ends the lease on a topic as time would; slow machines get all of it before that."""
    with engine.begin() as connection:
        connection.execute(update(LEASES).values(until_ms=0))


@contextmanager
def running(*relays: Relay) -> Iterator[None]:
    """Relays at work in threads."""
    threads = [threading.Thread(target=relay.run) for relay in relays]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for relay in relays:
            relay.stop()
        for thread in threads:
            thread.join()


def stall(proxy: Proxy, engine: Engine, marker: bytes, left_ms: int) -> None:
    """Has the request that holds the marker wait until the lease lasts no longer than this."""

    async def pass_on(data: bytes) -> bytes:
        if marker in data:
            await wait_until_async(lambda: lease_left_ms(engine) < left_ms)
        return data

    proxy.change_request = pass_on


class Death(Exception):
    """The end of a relay."""


class Dying(Relay):
    """Dies between the calls to Redis and the transaction that deletes the rows."""

    def _finish(self, *_: Any, **__: Any) -> None:
        raise Death


def die(relay: Relay) -> None:
    """Relays until death."""
    with pytest.raises(Death):
        relay.relay_once()


def test_the_commands_of_an_id_keep_their_order(
    engine: Engine, producer: Producer, relays: Callable[..., Relay]
) -> None:
    """Within one transaction, and from one to the next; also of sends that replace and those that do not."""
    outbox = Outbox()
    with engine.begin() as connection:
        for id in ("a", "b", "c", "d", "e"):
            outbox.send(connection, "orders", "first", id=id, delay=60)
        outbox.cancel(connection, "orders", "a")
        outbox.cancel(connection, "orders", "b")
        outbox.send(connection, "orders", "second", id="b", delay=60)
        outbox.send(connection, "orders", "second", id="c", delay=60)
        outbox.send(connection, "orders", "second", id="d", delay=60, if_exists="replace")
        outbox.send(connection, "orders", "third", id="d", delay=60)
    with engine.begin() as connection:
        outbox.cancel(connection, "orders", "c")
        outbox.reschedule(connection, "orders", "e", delay=900)
        outbox.reschedule(connection, "orders", "e", delay=1800)
    assert relays(engine).relay_once() == 14
    assert [body_of(producer, id) for id in "abcde"] == [None, b"second", None, b"second", b"first"]
    found = producer.find("orders", "e")
    assert found
    assert found.record
    assert found.due_ms
    assert 1_790_000 < found.due_ms - found.record.sent_ms <= 1_800_000


def test_a_dead_relay_is_replaced(engine: Engine, producer: Producer, relays: Callable[..., Relay]) -> None:
    """Once its lease has ended, another one repeats what it did, and each message is one."""
    outbox = Outbox()
    with engine.begin() as connection:
        outbox.send(connection, "orders", "first", id="order-7", delay=60)
        outbox.cancel(connection, "orders", "order-7")
        outbox.send(connection, "orders", "second", id="order-7", delay=60)
        outbox.send(connection, "orders", "other", id="order-8", delay=60)
    die(relays(engine, Dying))
    assert body_of(producer, "order-7") == b"second"
    heir = relays(engine)
    assert heir.relay_once() == 0
    end_lease(engine)
    assert heir.relay_once() == 4
    assert (body_of(producer, "order-7"), body_of(producer, "order-8")) == (b"second", b"other")
    assert count(engine) == 0


def test_a_repeat_undoes_no_cancel(engine: Engine, producer: Producer, relays: Callable[..., Relay]) -> None:
    """A relay stored a message and died; the message was cancelled; another relay repeats the send."""
    outbox = Outbox()
    with engine.begin() as connection:
        outbox.send(connection, "orders", 1, id="order-7", delay=60)
    die(relays(engine, Dying))
    idle(0.01)  # the lease keeps its moment in whole milliseconds
    producer.cancel("orders", "order-7")
    with engine.begin() as connection:
        outbox.send(connection, "orders", 1, id="order-8", delay=60)
    end_lease(engine)
    assert relays(engine).relay_once() == 2
    assert producer.find("orders", "order-7") is None
    assert producer.find("orders", "order-8")


def test_a_send_after_a_cancel_is_no_repeat(engine: Engine, producer: Producer, relays: Callable[..., Relay]) -> None:
    """A send that was written after the cancel is sent, although a relay has failed in between."""
    outbox = Outbox()
    with engine.begin() as connection:
        outbox.send(connection, "orders", "first", id="order-7", delay=60)
    die(relays(engine, Dying))
    producer.cancel("orders", "order-7")
    idle(0.01)
    with engine.begin() as connection:
        outbox.cancel(connection, "orders", "order-7")
        outbox.send(connection, "orders", "second", id="order-7", delay=60)
    end_lease(engine)
    assert relays(engine).relay_once() == 3
    assert body_of(producer, "order-7") == b"second"


class DyingLater(Relay):
    """Dies as above, of more rows than a relay reads at first."""

    def _finish(self, connection: Any, name: str, claim: Any, **options: Any) -> bool:
        if len(claim.rows) > 100:
            raise Death
        return super()._finish(connection, name, claim, **options)


def test_an_heir_that_reads_fewer_rows_undoes_no_cancel(
    engine: Engine, producer: Producer, relays: Callable[..., Relay]
) -> None:
    """It repeats in two claims what the dead relay did in one; a send after a cancel of the first is no repeat."""
    outbox, dying = Outbox(), relays(engine, DyingLater)
    with engine.begin() as connection:
        outbox.send_many(connection, "orders", [Message(body=1, delay=60) for _ in range(100)])
    assert dying.relay_once() == 100
    with engine.begin() as connection:
        outbox.send(connection, "orders", "first", id="order-7", delay=60)
        outbox.cancel(connection, "orders", "order-7")
        outbox.send_many(connection, "orders", [Message(body=1, id=f"order-1{n}", delay=60) for n in range(120)])
        outbox.send(connection, "orders", "second", id="order-7", delay=60)
    die(dying)
    idle(0.01)  # the lease keeps its moment in whole milliseconds
    producer.cancel("orders", "order-1119")
    end_lease(engine)
    heir = relays(engine, rows=100)
    assert [heir.relay_once(), heir.relay_once()] == [100, 23]
    assert producer.find("orders", "order-1119") is None
    assert producer.find("orders", "order-1118")
    assert body_of(producer, "order-7") == b"second"


class DyingEarly(Relay):
    """Dies before its first call to Redis."""

    def _carry_out(self, *_: Any) -> None:
        raise Death


def test_an_heir_that_dies_loses_no_replacement(
    engine: Engine, producer: Producer, relays: Callable[..., Relay]
) -> None:
    """What it has stored came after the first relay began, and is not what the second replacement would store."""
    with engine.begin() as connection:
        for body in ("first", "second"):
            Outbox().send(connection, "orders", body, id="order-7", delay=60, if_exists="replace")
        Outbox().send(connection, "orders", "other", id="order-8", delay=60)
    die(relays(engine, DyingEarly))
    idle(0.01)  # the lease keeps its moment in whole milliseconds
    for rows in (1, 2):
        end_lease(engine)
        assert relays(engine, rows=rows).relay_once() == rows
    assert body_of(producer, "order-7") == b"second"


async def test_a_lease_that_ends_after_a_cancel_loses_no_send(
    engine: Engine, own_server: Callable[..., Server], relays: Callable[..., Relay]
) -> None:
    """A send that follows the cancel in its transaction was not tried when the relay was too slow."""
    server, outbox = own_server(), Outbox()
    settings = ProducerSettings(redis_url=server.url)
    with Producer(settings=settings) as producer:
        producer.send("orders", "first", id="order-7", delay=60)
        with engine.begin() as connection:
            outbox.cancel(connection, "orders", "order-7")
            outbox.send(connection, "orders", "slow", id="order-8", delay=60)
            outbox.cancel(connection, "orders", "order-9")
            outbox.send(connection, "orders", "second", id="order-7", delay=60)
        async with Proxy(server.port) as proxy:
            stall(proxy, engine, b"order-8", 0)
            relay = relays(engine, settings=ProducerSettings(redis_url=proxy.url), lease=1)
            while count(engine):
                await asyncio.to_thread(relay.relay_once)
        assert body_of(producer, "order-7") == b"second"


async def test_a_lost_reply_undoes_no_cancel(
    engine: Engine, own_server: Callable[..., Server], relays: Callable[..., Relay]
) -> None:
    """Of the second of two calls for the same rows: its message was cancelled before the relay knew."""
    server = own_server()
    with Producer(settings=ProducerSettings(redis_url=server.url)) as producer:
        with engine.begin() as connection:
            messages = [Message(body=1, id=f"order-{n}", delay=60) for n in range(10, 30)]
            Outbox().send_many(connection, "orders", messages)
        async with Proxy(server.port) as proxy:
            proxy.lose_reply_to(b"order-29")
            proxy.at_loss = lambda: asyncio.to_thread(producer.cancel, "orders", "order-29")
            relay = relays(engine, settings=ProducerSettings(redis_url=proxy.url, batch_messages=10))
            assert await asyncio.to_thread(relay.relay_once) == 10
            await wait_until_async(lambda: asyncio.to_thread(relay.relay_once))
        assert count(engine) == 0
        assert [n for n in range(10, 30) if producer.find("orders", f"order-{n}") is None] == [29]


async def test_a_slow_server_ends_a_claim_early(
    engine: Engine, own_server: Callable[..., Server], relays: Callable[..., Relay]
) -> None:
    """What half the lease has not sufficed for is a claim of its own, and no failure."""
    server = own_server()
    with engine.begin() as connection:
        for n in range(3):
            Outbox().cancel(connection, "orders", f"order-{n}")
    async with Proxy(server.port) as proxy:
        stall(proxy, engine, b"order-0", 900)
        relay = relays(engine, settings=ProducerSettings(redis_url=proxy.url), lease=2)
        assert await asyncio.to_thread(relay.relay_once) == 1
        while count(engine):
            await asyncio.to_thread(relay.relay_once)
            assert not relay.problem


class Paused(Relay):
    """Pauses between reading rows and sending them: as if SIGSTOP came then."""

    def _carry_out(self, name: str, claim: Any) -> Any:
        self.has_read.set()
        assert self.may_go_on.wait(60)
        return super()._carry_out(name, claim)

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.has_read, self.may_go_on = threading.Event(), threading.Event()


def test_a_paused_relay_changes_nothing_later(engine: Engine, producer: Producer, relays: Callable[..., Relay]) -> None:
    """It goes on after another one has relayed its rows, and what came after them."""
    outbox = Outbox()
    with engine.begin() as connection:
        outbox.send(connection, "orders", "first", id="order-7", delay=60)
        outbox.send(connection, "orders", "first", id="order-8", delay=60)
        outbox.reschedule(connection, "orders", "order-8", delay=900)
    slow = relays(engine, Paused, lease=1)
    thread = threading.Thread(target=slow.relay_once)
    thread.start()
    assert slow.has_read.wait(60)  # type: ignore[attr-defined]
    with engine.begin() as connection:
        outbox.cancel(connection, "orders", "order-7")
        outbox.cancel(connection, "orders", "order-8")
        outbox.send(connection, "orders", "second", id="order-8", delay=1800)
    other = relays(engine)
    wait_until(other.relay_once)
    with engine.begin() as connection:
        id = outbox.send(connection, "orders", "later", delay=60)
    slow.may_go_on.set()  # type: ignore[attr-defined]
    thread.join()
    assert producer.find("orders", "order-7") is None
    assert body_of(producer, "order-8") == b"second"
    # Nor did it delete rows, or take the lease away.
    assert other.relay_once() == 1
    assert body_of(producer, id) == b"later"


def test_a_row_that_lisa_refuses_is_set_aside(
    engine: Engine, producer: Producer, relays: Callable[..., Relay], declare: Callable[..., None]
) -> None:
    """With its error; the others are sent."""
    declare(max_body_bytes=10)
    outbox, relay = Outbox(), relays(engine)
    with engine.begin() as connection:
        outbox.send(connection, "orders", "x" * 11, id="long", delay=60)
        outbox.send(connection, "orders", "x", id="short", delay=60)
        for command in ("send", "cancel", "reschedule"):
            outbox.send(connection, "orders", "y", id=f"damaged {command}", delay=60)
        connection.execute(update(ROWS).where(ROWS.c.message_id == "damaged send").values(options="]"))
        connection.execute(update(ROWS).where(ROWS.c.message_id == "damaged cancel").values(command="dance"))
        changed = {"command": "reschedule", "due": "soon"}
        connection.execute(update(ROWS).where(ROWS.c.message_id == "damaged reschedule").values(changed))
        outbox.cancel(connection, "orders", "short")
    assert relay.relay_once() == 6
    assert producer.find("orders", "short") is None
    with engine.connect() as connection:
        errors = [*connection.scalars(select(ROWS.c.error).order_by(ROWS.c.id))]
    assert [error.partition(" must be ")[0] for error in errors] == ["body", "options", "command", "due"]
    assert relay.relay_once() == 0
    assert read_backlog(engine).set_aside == 4
    # An operator mends the cause, and has it tried again.
    with engine.begin() as connection:
        connection.execute(update(ROWS).where(ROWS.c.message_id == "long").values(body=b"mended", error=None))
    assert relay.relay_once() == 1
    assert body_of(producer, "long") == b"mended"


def test_a_full_topic_waits_alone(
    engine: Engine, producer: Producer, relays: Callable[..., Relay], declare: Callable[..., None]
) -> None:
    """A full topic takes messages up to its limit, and the others when there is room again."""
    declare("full", max_messages=3)
    outbox, relay = Outbox(), relays(engine)
    with engine.begin() as connection:
        for n in range(5):
            outbox.send(connection, "full", n, id=f"full-{n}", delay=60)
            outbox.send(connection, "orders", n, id=f"order-{n}", delay=60)
    with running(relay):
        wait_until(lambda: count(engine) == 2)
        wait_until(lambda: relay.problem.startswith("full: "))
        assert [bool(producer.find("orders", f"order-{n}")) for n in range(5)] == [True] * 5
        assert [bool(producer.find("full", f"full-{n}")) for n in range(5)] == [True] * 3 + [False] * 2
        for n in range(2):
            producer.cancel("full", f"full-{n}")
        wait_until(lambda: count(engine) == 0)
        wait_until(lambda: not relay.problem)
    assert [bool(producer.find("full", f"full-{n}")) for n in range(5)] == [False] * 2 + [True] * 3


def test_redis_may_go_away(postgres: Engine, own_server: Callable[..., Server], relays: Callable[..., Relay]) -> None:
    """Rows wait until it is back; the relay says why."""
    server = own_server(appendonly="yes", appendfsync="always")
    settings = ProducerSettings(redis_url=server.url, timeout_s=1)
    outbox, relay = Outbox(), relays(postgres, settings=settings, lease=2)
    ids = []
    with running(relay), Producer(settings=settings) as producer:
        for turn in range(3):
            with postgres.begin() as connection:
                ids += [outbox.send(connection, "orders", 1, delay=600) for _ in range(50)]
            if turn == 1:
                server.kill()
                with postgres.begin() as connection:
                    ids += [outbox.send(connection, "orders", 1, delay=600) for _ in range(50)]
                wait_until(lambda: relay.problem)
                server.start()
            wait_until(lambda: count(postgres) == 0 and not relay.problem, 20)
        assert all(producer.find("orders", id) for id in ids)


@pytest.mark.parametrize("engine", ["postgresql", "mariadb"], indirect=True)
def test_the_database_may_go_away(
    engine: Engine,
    producer: Producer,
    relays: Callable[..., Relay],
    servers: Callable[[str], Database],
) -> None:
    """A relay waits until it is back, and goes on."""
    outbox, relay = Outbox(), relays(engine, lease=1)
    database = servers("postgresql" if engine.dialect.name == "postgresql" else "mariadb")
    with running(relay):
        with engine.begin() as connection:
            ids = [outbox.send(connection, "orders", 1, delay=600) for _ in range(50)]
        database.kill()
        wait_until(lambda: relay.problem, 20)
        database.start()
        with engine.begin() as connection:
            ids += [outbox.send(connection, "orders", 1, delay=600) for _ in range(50)]
        wait_until(lambda: count(engine) == 0, 30)
    assert all(producer.find("orders", id) for id in ids)


def test_a_connection_that_writes_no_more_is_left(
    postgres: Engine, producer: Producer, relays: Callable[..., Relay]
) -> None:
    """As after a fail-over whose old server goes on answering: the next connection leads to the new one."""
    with postgres.begin() as connection:
        Outbox().send(connection, "orders", "x", id="a", delay=60)
    postgres.dispose()
    made: list[object] = []

    @event.listens_for(postgres, "connect")
    def connected(connection: Any, _: object) -> None:
        if not made:
            connection.execute("SET default_transaction_read_only = on")
            connection.commit()
        made.append(connection)

    relay = relays(postgres)
    with pytest.raises(DBAPIError, match="read-only transaction"):
        relay.relay_once()
    assert relay.relay_once() == 1
    assert body_of(producer, "a") == b"x"


def test_several_relays_keep_the_order(engine: Engine, producer: Producer, relays: Callable[..., Relay]) -> None:
    """Each id is sent, cancelled and sent again, while three relays are at work."""
    outbox = Outbox()
    ids = [f"order-{n}" for n in range(60)]
    with running(*(relays(engine, rows=7) for _ in range(3))):
        for text, topic in ((text, topic) for text in ("first", "second", "third") for topic in ("orders", "returns")):
            for id in ids:
                with engine.begin() as connection:
                    if text != "first":
                        outbox.cancel(connection, topic, id)
                    outbox.send(connection, topic, text, id=id, delay=600)
        wait_until(lambda: count(engine) == 0, 60)
    for topic in ("orders", "returns"):
        assert {body_of(producer, id, topic) for id in ids} == {b"third"}


def test_a_lease_of_a_clock_that_was_set_back(engine: Engine, producer: Producer, relays: Callable[..., Relay]) -> None:
    """A dead relay has it until a year that nobody will wait for; of those that may last, the end is waited for."""
    with engine.begin() as connection:
        Outbox().send(connection, "orders", "x", id="a", delay=60)
        connection.execute(insert(LEASES).values(topic="orders", owner="dead", until_ms=now_ms() + 3_500_000))
    assert relays(engine).relay_once() == 0
    with engine.begin() as connection:
        connection.execute(update(LEASES).values(until_ms=now_ms() + 366 * 86_400_000))
    assert relays(engine).relay_once() == 1
    assert body_of(producer, "a") == b"x"


@pytest.mark.parametrize("engine", ["mariadb"], indirect=True)
def test_two_relays_that_meet_at_a_new_topic(engine: Engine, relays: Callable[..., Relay]) -> None:
    """MariaDB ends one of them for a deadlock: for that relay, the other has the topic."""
    lease = {"owner": "other", "until_ms": 0}
    with engine.begin() as connection:
        Outbox().send(connection, "orders", 1)
    relay, relayed = relays(engine), list[int]()
    thread = threading.Thread(target=lambda: relayed.append(relay.relay_once()))
    with engine.begin() as other, engine.connect() as watcher:
        # It has written more, so MariaDB ends the relay.
        other.execute(insert(LEASES), [{"topic": f"z{number}"} | lease for number in range(50)])
        other.execute(update(LEASES).where(LEASES.c.topic == "orders").values(owner="other"))
        thread.start()
        inserts = "INFO LIKE 'INSERT INTO lisa_outbox_lease%'"
        waiting = text(f"SELECT COUNT(*) FROM information_schema.processlist WHERE {inserts}")  # noqa: S608
        wait_until(lambda: watcher.scalar(waiting) == 1, what="a relay that waits for the lease")
        other.execute(insert(LEASES).values(topic="orders", **lease))
        thread.join()
    assert relayed == [0]


def test_a_later_row_that_becomes_visible_first_hides_none(
    postgres: Engine, producer: Producer, relays: Callable[..., Relay]
) -> None:
    """Identities are assigned before the commit."""
    outbox, relay = Outbox(), relays(postgres)
    with postgres.connect() as early:
        first = outbox.send(early, "orders", "early", delay=60)
        with postgres.begin() as late:
            second = outbox.send(late, "orders", "late", delay=60)
        assert relay.relay_once() == 1
        early.commit()
    assert relay.relay_once() == 1
    assert (body_of(producer, first), body_of(producer, second)) == (b"early", b"late")


def test_a_message_that_was_handled_is_not_sent_again(
    engine: Engine, producer: Producer, relays: Callable[..., Relay], settings: ProducerSettings
) -> None:
    """Also where the caller gave no id: a relay died after the send, and the message was acked before the repeat."""
    from lisa_consumer import Consumer, ConsumerSettings  # noqa: PLC0415

    with engine.begin() as connection:
        id = Outbox().send(connection, "orders", 1)
    die(relays(engine, Dying))
    given = ConsumerSettings(redis_url=settings.redis_url, prefix=settings.prefix)
    with Consumer("orders", "billing", settings=given) as consumer:
        [delivery] = consumer.read(1, wait=30)
        assert delivery.id == id
        consumer.ack(delivery)
        end_lease(engine)
        assert relays(engine).relay_once() == 1
        assert consumer.read(1) == []
    found = producer.find("orders", id)
    assert found
    assert found.state is State.FINISHED
