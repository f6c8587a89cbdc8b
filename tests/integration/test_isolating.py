"""Workers that hold deliveries which must run alone, beside others."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import redis

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.errors import Unreachable
from lisa_common.model.keys import ShardKeys
from lisa_common.model.policy import Policy
from lisa_common.protocol.marking import StartMark
from lisa_consumer import AsyncConsumer, ConsumerSettings, Delivery
from lisa_consumer.delivery.core import Core
from lisa_consumer.handling.handler import Route
from lisa_consumer.worker import quarantine
from lisa_consumer.worker.queue import Queue
from lisa_consumer.worker.settler import Settler
from lisa_consumer.worker.start_marks import StartMarks
from lisa_consumer.worker.windows import Windows
from lisa_producer import AsyncProducer, Message, State
from support import idle_async, wait_until_async
from support.holding import hold, read_all
from support.housekeeping import Housekeeper
from support.running import Handled, hang, new_worker, working


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is held back for long."""
    monkeypatch.setattr(quarantine, "_PATIENCE_S", 0.1)
    monkeypatch.setattr(quarantine, "_ALONE_S", 0.1)


async def _send_alone(sender: AsyncProducer, client: redis.Redis, prefix: str, topic: str, id: str) -> None:
    """Makes a message ready as the retry of one that was abandoned twice."""
    sent = await sender.send(topic, b"x", id=id, delay=3_600)
    keys = ShardKeys(prefix, topic)
    client.zrem(keys.of("waiting"), id)
    fields = {"id": id, "due": sent.due_ms, "n": 3, "g": "billing", "at": 1, "alone": 1}
    client.xadd(keys.of("ready"), fields)


@pytest.mark.usefixtures("quick")
async def test_what_cannot_run_holds_nothing_back(
    redis_url: str, prefix: str, sender: AsyncProducer, client: redis.Redis
) -> None:
    """Promise 12: a delivery waits for long handlers of its own topic; other topics go on."""
    worker = new_worker(redis_url, prefix, concurrency=3)
    gate = asyncio.Event()
    begun = hang(worker, "slow", gate, concurrency=1)
    others = Handled()

    @worker.on("other")
    async def handle(delivery: Delivery) -> None:
        others.append(delivery)

    async with working(worker):
        await sender.send("slow", b"x", id="first")
        await wait_until_async(lambda: begun.ids == ["first"])
        await _send_alone(sender, client, prefix, "slow", "alone")
        group = ShardKeys(prefix, "slow").of("ready"), "billing"
        await wait_until_async(lambda: client.xpending(*group)["pending"] == 2)
        for number in range(5):
            await sender.send("other", b"x", id=f"{number}")
            await wait_until_async(lambda: len(others) == number + 1)  # noqa: B023 - waited for at once
        gate.set()
        await wait_until_async(lambda: begun.ids == ["first", "alone"])


async def test_who_ran_alone_is_settled_before_anything_else_begins(
    redis_url: str, prefix: str, sender: AsyncProducer, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What begins then may kill the process; an innocent that was not acked by then would die with it."""
    worker = new_worker(redis_url, prefix, concurrency=3)
    handled, answered = Handled(), asyncio.Event()
    settle = Settler._settle

    async def settle_later(self: Settler, batch: list[Any], **options: Any) -> None:
        await answered.wait()
        await settle(self, batch, **options)

    monkeypatch.setattr(Settler, "_settle", settle_later)

    @worker.on("orders")
    async def handle(delivery: Delivery) -> None:
        handled.append(delivery)

    ready = ShardKeys(prefix, "orders").of("ready")
    client.xgroup_create(ready, "billing", "0", mkstream=True)
    for id in ("first", "second"):
        await _send_alone(sender, client, prefix, "orders", id)
    async with working(worker):
        await wait_until_async(lambda: client.xpending(ready, "billing")["pending"] >= 2)
        await wait_until_async(lambda: handled.ids == ["first"])
        await idle_async(0.2)
        assert handled.ids == ["first"]
        answered.set()
        await wait_until_async(lambda: set(handled.ids) >= {"first", "second"})
    assert client.xpending(ready, "billing")["pending"] == 0


def _new_marks(connection: AsyncConnection, core: Core, queue: Queue) -> StartMarks:
    marks = StartMarks(connection, core, queue, Windows({"orders": Route("orders", print, 9)}, 10))
    core.enable_marks(marks)
    return marks


def _new_queue() -> Queue:
    return Queue(9, [Route("orders", print, 9)])


async def test_a_mark_goes_to_the_last_of_those_that_run(
    redis_url: str, prefix: str, sender: AsyncProducer, client: redis.Redis
) -> None:
    """However late an earlier one began: what the server holds for begun is all up to a mark."""
    core, queue = Core(prefix, "billing"), _new_queue()
    settings = ConsumerSettings(redis_url=redis_url, prefix=prefix)
    async with AsyncConnection.of(settings, name="test") as connection:
        await sender.send_many("orders", [Message(body=b"x") for _ in range(4)])
        core.enable_marks()
        first, *later = await connection.run(read_all(core, ["orders"], limit=4))
        marks = _new_marks(connection, core, queue)
        # The read of the later ones has marked them while the first still waited for its mark.
        queue.put(hold([first], is_marked=False))
        started = queue.take()
        assert marks.begin(started) == []
        await connection.run(core.mark([(later[-1], StartMark.YES)]))
        marks.take(hold(later))
        assert await marks.mark() == started
        await connection.run(core.ack(later[-1:]))
        rows = client.xpending_range(ShardKeys(prefix, "orders").of("ready"), "billing", "-", "+", 10)
        assert rows[-1]["message_id"].decode() == later[1].entry.entry
        assert rows[-1]["times_delivered"] == StartMark.YES


async def test_a_mark_is_passed_on_when_its_ack_is_retried(
    redis_url: str, prefix: str, sender: AsyncProducer, client: redis.Redis
) -> None:
    """A server that was away for an ack has not heard of the heir either."""
    core = Core(prefix, "billing")
    settings = ConsumerSettings(redis_url=redis_url, prefix=prefix)
    async with AsyncConnection.of(settings, name="test") as connection, AsyncConnection("redis://127.0.0.1:1") as away:
        await sender.send_many("orders", [Message(body=b"x") for _ in range(3)])
        core.enable_marks()
        deliveries = await connection.run(read_all(core, ["orders"], limit=3))
        marks = _new_marks(connection, core, _new_queue())
        await connection.run(core.mark([(deliveries[-1], StartMark.YES)]))
        marks.take(hold(deliveries))
        with pytest.raises(Unreachable):
            await away.run(core.ack(deliveries[-1:]))
        await connection.run(core.ack(deliveries[-1:]))
        rows = client.xpending_range(ShardKeys(prefix, "orders").of("ready"), "billing", "-", "+", 10)
        assert [row["times_delivered"] for row in rows] == [StartMark.NOT, StartMark.YES]


async def test_what_was_read_while_something_began_alone_has_not_begun(
    redis_url: str, prefix: str, sender: AsyncProducer, client: redis.Redis
) -> None:
    """The read marked it as begun, because it could run. Now it has to wait, and must not die with the other."""
    core, queue = Core(prefix, "billing"), _new_queue()
    settings = ConsumerSettings(redis_url=redis_url, prefix=prefix)
    async with AsyncConnection.of(settings, name="test") as connection:
        marks = _new_marks(connection, core, queue)
        await connection.run(read_all(core, ["orders"], limit=9))
        await _send_alone(sender, client, prefix, "orders", "alone")
        alone = hold(await connection.run(read_all(core, ["orders"], limit=9)), is_marked=False)
        await sender.send_many("orders", [Message(body=b"x") for _ in range(3)])
        [(others, count)] = (await connection.run(core.read(["orders"], limit=9))).batches
        assert count == len(others)
        queue.put(alone)
        queue.put(read := hold(others))
        marks.take(read)
        started = queue.take()
        assert (started, marks.begin(started)) == (alone, [])
        assert await marks.mark() == alone
        rows = client.xpending_range(ShardKeys(prefix, "orders").of("ready"), "billing", "-", "+", 10)
        assert [row["times_delivered"] for row in rows] == [StartMark.ALONE, *[StartMark.NOT] * 3]


async def test_an_alone_delivery_that_is_given_back_does_not_die(
    *, redis_url: str, prefix: str, connection: AsyncConnection, sender: AsyncProducer, declare: Callable[..., Policy]
) -> None:
    """Its lease ran out before its handler was called: whatever it was marked as, it has not begun."""
    housekeeper = Housekeeper(connection, prefix, declare(max_retries=0))
    core, queue = Core(prefix, "billing"), _new_queue()
    await sender.send("orders", b"x", id="innocent")
    settings = ConsumerSettings(redis_url=redis_url, prefix=prefix)
    async with AsyncConsumer("orders", "billing", settings=settings) as died:
        await died.read(wait=10)
    await housekeeper.reclaim("orders", "billing", after_s=60)
    await housekeeper.promote("orders", after_s=120)
    marks = _new_marks(connection, core, queue)
    queue.put(hold(await connection.run(read_all(core, ["orders"], limit=1)), is_marked=False))
    marks.begin(queue.take())
    [held] = await marks.mark()
    assert held.delivery.alone
    assert await connection.run(core.release([held.delivery])) == 1
    status = await sender.find("orders", "innocent")
    assert status is not None
    assert (status.state, status.attempts) == (State.READY, 1)
