"""Workers that hold deliveries which must run alone, beside others."""

import asyncio
from typing import Any

import pytest
import redis

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.client.async_tasks import cancel_all
from lisa_common.errors import Unreachable
from lisa_common.model.keys import ShardKeys
from lisa_common.protocol.marking import Begun
from lisa_consumer import ConsumerSettings, Delivery, isolation
from lisa_consumer.worker.start_marks import BegunMarker
from lisa_consumer.worker.concurrency import ConcurrencyLimit
from lisa_consumer.delivery.core import Core
from lisa_consumer.worker.held import HeldDelivery
from lisa_consumer.mark_hooks import MarkHooks
from lisa_consumer.worker.queue import Queues
from lisa_consumer.worker.settler import Settler
from lisa_producer import AsyncProducer, Message
from support import idle_async, wait_until_async
from support.holding import hold
from support.running import Handled, hang, new_worker, working


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is held back for long."""
    monkeypatch.setattr(isolation, "_PATIENCE_S", 0.1)
    monkeypatch.setattr(isolation, "_ALONE_S", 0.1)


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
            await wait_until_async(lambda: len(others) == number + 1, 5)  # noqa: B023 - waited for at once
        gate.set()
        await wait_until_async(lambda: begun.ids == ["first", "alone"])


async def test_who_ran_alone_is_settled_before_anything_else_begins(
    redis_url: str, prefix: str, sender: AsyncProducer, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What begins then may kill the process; an innocent that was not acked by then would die with it."""
    worker = new_worker(redis_url, prefix, concurrency=3)
    handled, answered = Handled(), asyncio.Event()
    settle = Settler._settle_batch

    async def settle_later(self: Settler, batch: list[Any], *, again: bool) -> None:
        await answered.wait()
        await settle(self, batch, again=again)

    monkeypatch.setattr(Settler, "_settle_batch", settle_later)

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


def _hooks(marker: BegunMarker) -> MarkHooks:
    """Marks nothing as it is read."""
    return MarkHooks(lambda _, batches: [0] * len(batches), marker.remove, marker.inherit)


async def test_a_mark_goes_to_the_last_of_those_that_run(
    redis_url: str, prefix: str, sender: AsyncProducer, client: redis.Redis
) -> None:
    """However late an earlier one began: what the server holds for begun is all up to a mark."""
    core = Core(prefix, "billing")
    settings = ConsumerSettings(redis_url=redis_url, prefix=prefix)
    async with AsyncConnection.of(settings, name="test") as connection:
        begun: list[HeldDelivery] = []
        marker = BegunMarker(connection, core, begun.extend, lambda _: ())
        core.enable_marks(_hooks(marker))
        await sender.send_many("orders", [Message(body=b"x") for _ in range(4)])
        first, *later = await connection.run(core.read(["orders"], limit=4))
        # The read of the later ones has marked them while the first still waited for its mark.
        [held] = hold([first], is_begun=False)
        marker.begin([held])
        await connection.run(core.mark([(later[-1], Begun.YES)]))
        marker.add(later)
        marking = asyncio.create_task(marker.run())
        await wait_until_async(lambda: begun == [held])
        await connection.run(core.ack(later[-1:]))
        rows = client.xpending_range(ShardKeys(prefix, "orders").of("ready"), "billing", "-", "+", 10)
        assert rows[-1]["message_id"].decode() == later[1].entry.entry
        assert rows[-1]["times_delivered"] == Begun.YES
        await cancel_all(marking)


async def test_a_mark_is_passed_on_when_its_ack_is_retried(
    redis_url: str, prefix: str, sender: AsyncProducer, client: redis.Redis
) -> None:
    """A server that was away for an ack has not heard of the heir either."""
    core = Core(prefix, "billing")
    settings = ConsumerSettings(redis_url=redis_url, prefix=prefix)
    async with AsyncConnection.of(settings, name="test") as connection, AsyncConnection("redis://127.0.0.1:1") as away:
        marker = BegunMarker(connection, core, lambda _: None, lambda _: [])
        core.enable_marks(_hooks(marker))
        await sender.send_many("orders", [Message(body=b"x") for _ in range(3)])
        deliveries = await connection.run(core.read(["orders"], limit=3))
        await connection.run(core.mark([(deliveries[-1], Begun.YES)]))
        marker.add(deliveries)
        with pytest.raises(Unreachable):
            await away.run(core.ack(deliveries[-1:]))
        await connection.run(core.ack(deliveries[-1:]))
        rows = client.xpending_range(ShardKeys(prefix, "orders").of("ready"), "billing", "-", "+", 10)
        assert [row["times_delivered"] for row in rows] == [Begun.NOT, Begun.YES]


async def test_what_was_read_while_something_began_alone_has_not_begun(
    redis_url: str, prefix: str, sender: AsyncProducer, client: redis.Redis
) -> None:
    """The read marked it as begun, as it could run. Now it has to wait, and must not die with the other."""
    core = Core(prefix, "billing")
    settings = ConsumerSettings(redis_url=redis_url, prefix=prefix)
    begun: list[HeldDelivery] = []
    async with AsyncConnection.of(settings, name="test") as connection:
        limit, stopping = ConcurrencyLimit(9, {"orders": 9}), asyncio.Event()
        queues = Queues(
            *(connection, core, limit, stopping), begin=begun.extend, soon=lambda _: 0, may_begin=lambda _: True
        )
        await connection.run(core.read(["orders"], limit=9))
        await _send_alone(sender, client, prefix, "orders", "alone")
        alone = hold(await connection.run(core.read(["orders"], limit=9)), is_begun=False)
        await sender.send_many("orders", [Message(body=b"x") for _ in range(3)])
        [(others, count)] = (await connection.run(core.read_leased(["orders"], limit=9))).batches
        assert count == len(others)
        queues.add(alone)
        queues.add(hold(others))
        marking = asyncio.create_task(queues.run())
        await wait_until_async(lambda: begun == alone)
        rows = client.xpending_range(ShardKeys(prefix, "orders").of("ready"), "billing", "-", "+", 10)
        assert [row["times_delivered"] for row in rows] == [Begun.ALONE, *[Begun.NOT] * 3]
        await cancel_all(marking)
