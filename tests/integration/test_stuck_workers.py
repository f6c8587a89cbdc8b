"""Workers whose handlers do not end: they say so, and what they hold and have not begun goes to others.

No manager runs: one would rightly take back what a worker holds when the machine lets that stall for a lease.
"""

import asyncio
import logging
import threading
from collections.abc import Callable

import pytest
import redis

from lisa_common.model.keys import ShardKeys
from lisa_common.model.policy import Policy
from lisa_consumer import AsyncConsumer, ConsumerSettings, Delivery, Worker
from lisa_manager import Admin, ManagerSettings
from lisa_producer import AsyncProducer, Message, State
from support import idle_async, wait_until_async
from support.running import Handled, hang, new_worker, working
from support.server import lease_ages_ms

Declare = Callable[..., Policy]
STUCK = "topic orders is stuck"


def _prefetching(redis_url: str, prefix: str, **settings: object) -> Worker:
    return new_worker(redis_url, prefix, **({"concurrency": 2, "prefetch": 50} | settings))


async def _settled(sender: AsyncProducer, ids: list[str]) -> bool:
    found = [await sender.find("orders", id) for id in ids]
    return all(each and each.state is State.FINISHED for each in found)


@pytest.mark.parametrize("kind", ["coroutine", "function", "batch"])
async def test_what_waits_behind_hanging_handlers_goes_to_others(
    *,
    redis_url: str,
    prefix: str,
    sender: AsyncProducer,
    client: redis.Redis,
    declare: Declare,
    kind: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """After a visibility timeout, and without an attempt; log and probe say that the worker is stuck, until it goes on.

    The worker keeps what it has begun, and reads nothing more meanwhile.
    """
    declare(visibility_ms=1_000)
    caplog.set_level(logging.INFO, "lisa_consumer")
    worker, gate = _prefetching(redis_url, prefix, drain_s=0.1), threading.Event()
    begun, handled = list[str](), Handled()

    def begin(deliveries: list[Delivery]) -> bool:
        begun.extend(delivery.id for delivery in deliveries)
        return any(delivery.id.startswith("hang") for delivery in deliveries)

    async def coroutine(delivery: Delivery) -> None:
        while begin([delivery]) and not gate.is_set():
            await idle_async(0.01)

    def function(delivery: Delivery) -> None:
        if begin([delivery]):
            gate.wait()

    def batch(deliveries: list[Delivery]) -> None:
        if begin(deliveries):
            gate.wait()

    if kind == "batch":
        worker.on("orders", batch=10, within=0)(batch)
    else:
        worker.on("orders")(coroutine if kind == "coroutine" else function)
    other = _prefetching(redis_url, prefix)
    other.on("orders")(handled.append)
    good, ready = [f"good-{n}" for n in range(40)], ShardKeys(prefix, "orders").of("ready")
    try:
        async with working(worker):
            # It learns that handlers are quick, and prefetches.
            warm = [f"warm-{n}" for n in range(200)]
            await sender.send_many("orders", [Message(body=b"x", id=id) for id in warm])
            await wait_until_async(lambda: set(warm) <= set(begun))
            await sender.send_many("orders", [Message(body=b"x", id=f"hang-{n}") for n in range(2)])
            await wait_until_async(lambda: any(id.startswith("hang") for id in begun))
            caplog.clear()
            await sender.send_many("orders", [Message(body=b"x", id=id) for id in good])
            async with working(other):
                await wait_until_async(lambda: STUCK in caplog.text)
                assert STUCK in worker.health.find_problem()
                await wait_until_async(lambda: set(good) <= {*handled.ids, *begun})
                assert not set(good) & set(begun)
                assert {delivery.attempt for delivery in handled} == {1}
            held = await sender.find("orders", "hang-0")
            assert (held and held.state, held and held.attempts) == (State.DELIVERED, 1)
            await wait_until_async(lambda: max(lease_ages_ms(client, ready)) < 1_000, what="renewed leases")
            gate.set()
            await wait_until_async(lambda: "topic orders goes on" in caplog.text)
            await sender.send("orders", b"x", id="after")
            await wait_until_async(lambda: "after" in begun)
            assert STUCK not in worker.health.find_problem()
            assert caplog.text.count("the oldest with hang-") == 1
    finally:
        gate.set()


async def test_what_is_given_back_does_not_come_again_at_once(
    *, redis_url: str, prefix: str, sender: AsyncProducer, declare: Declare, caplog: pytest.LogCaptureFixture
) -> None:
    """A stuck worker gives back once what waits, and leaves it in the stream, where it counts as late."""
    declare(visibility_ms=300)
    caplog.set_level(logging.INFO, "lisa_consumer")
    worker, gate = _prefetching(redis_url, prefix), asyncio.Event()
    begun = hang(worker, "orders", gate)
    async with working(worker):
        await sender.send_many("orders", [Message(body=b"x", id=f"m{n}") for n in range(6)])
        await wait_until_async(lambda: STUCK in caplog.text)
        with Admin(settings=ManagerSettings(redis_url=redis_url, prefix=prefix)) as admin:
            await wait_until_async(lambda: admin.sizes("orders")[0].ready == 4)
            # Two visibility timeouts, in which it would give back twice more.
            await idle_async(0.6)
            [status] = admin.status(["orders"])
        assert (status.delivered, status.ready) == (2, 4)
        assert status.late_ms > 600
        assert caplog.text.count("deliveries that had not begun") <= 2
        gate.set()
        await wait_until_async(lambda: len(begun) == 6)
    assert {delivery.attempt for delivery in begun} == {1}


async def test_slow_handlers_with_free_slots_are_not_stuck(
    *,
    redis_url: str,
    prefix: str,
    sender: AsyncProducer,
    client: redis.Redis,
    declare: Declare,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """However long they run: their leases are renewed, and what comes meanwhile begins."""
    declare(visibility_ms=200)
    caplog.set_level(logging.INFO, "lisa_consumer")
    worker, gate = _prefetching(redis_url, prefix, concurrency=3), asyncio.Event()
    begun = hang(worker, "orders", gate)
    async with working(worker):
        await sender.send_many("orders", [Message(body=b"x", id=f"m{n}") for n in range(2)])
        await wait_until_async(lambda: len(begun) == 2)
        await idle_async(1)
        ready = ShardKeys(prefix, "orders").of("ready")
        await wait_until_async(lambda: max(lease_ages_ms(client, ready)) < 200, what="renewed leases")
        assert not worker.health.find_problem()
        await sender.send("orders", b"x", id="late")
        await wait_until_async(lambda: "late" in begun.ids)
        gate.set()
        await wait_until_async(lambda: len(begun) == 3)
    assert await _settled(sender, ["m0", "m1", "late"])
    assert {delivery.attempt for delivery in begun} == {1}
    assert "deliveries that had not begun" not in caplog.text


async def test_a_slow_topic_goes_on_after_each_message(
    *, redis_url: str, prefix: str, sender: AsyncProducer, declare: Declare
) -> None:
    """Messages that wait for longer than their visibility timeout are all handled by the only worker, at attempt 1."""
    declare(visibility_ms=100)
    worker, handled = _prefetching(redis_url, prefix, concurrency=1), Handled()

    @worker.on("orders")
    async def handle(delivery: Delivery) -> None:
        await idle_async(0.25)
        handled.append(delivery)

    async with working(worker):
        await sender.send_many("orders", [Message(body=b"x", id=f"m{n}") for n in range(6)])
        await wait_until_async(lambda: len(handled) == 6)
    assert sorted(handled.ids) == [f"m{n}" for n in range(6)]
    assert {delivery.attempt for delivery in handled} == {1}


async def test_other_topics_of_a_stuck_worker_go_on(
    *, redis_url: str, prefix: str, sender: AsyncProducer, declare: Declare
) -> None:
    """A topic whose handlers hang takes the slots of all; the other one keeps one, and its messages come in time."""
    declare(visibility_ms=300)
    worker, gate = _prefetching(redis_url, prefix, concurrency=3), asyncio.Event()
    begun, handled = hang(worker, "orders", gate), Handled()
    worker.on("mails")(handled.append)
    async with working(worker):
        await sender.send_many("orders", [Message(body=b"x") for _ in range(6)])
        await wait_until_async(lambda: STUCK in worker.health.find_problem())
        await sender.send_many("mails", [Message(body=b"x") for _ in range(20)])
        await wait_until_async(lambda: len(handled) == 20)
        assert len(begun) == 2
        gate.set()


async def test_a_stuck_worker_drains(
    *, redis_url: str, prefix: str, sender: AsyncProducer, declare: Declare, caplog: pytest.LogCaptureFixture
) -> None:
    """It gives back everything, without an attempt."""
    declare(visibility_ms=300)
    worker = _prefetching(redis_url, prefix, drain_s=0.1)
    hang(worker, "orders", asyncio.Event())
    async with working(worker):
        await sender.send_many("orders", [Message(body=b"x", id=f"m{n}", max_retries=0) for n in range(6)])
        await wait_until_async(lambda: STUCK in caplog.text)
    settings = ConsumerSettings(redis_url=redis_url, prefix=prefix)
    async with AsyncConsumer("orders", "billing", settings=settings) as other:
        given_back = await other.read(limit=10)
    assert {(delivery.id, delivery.attempt) for delivery in given_back} == {(f"m{n}", 1) for n in range(6)}
