"""Workers that stop, lose a lease, or lose their server."""

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import redis

from lisa_common.model.keys import ShardKeys
from lisa_common.model.policy import Policy
from lisa_common.protocol.marking import StartMark
from lisa_consumer import AsyncConsumer, ConsumerSettings, Delivery, Reject, Worker
from lisa_consumer.names import HANDLER
from lisa_producer import AsyncProducer, Message, ProducerSettings, State
from support import Server, idle_async, wait_until_async
from support.housekeeping import Housekeeper
from support.running import Handled, hang, managed, new_worker, working

OwnServer = Callable[..., Server]


def _hang(worker: Worker, *, concurrency: int | None = None) -> tuple[Handled, asyncio.Event]:
    """Has a worker handle orders by waiting for an event."""
    gate = asyncio.Event()
    return hang(worker, "orders", gate, concurrency=concurrency), gate


async def test_a_drain_finishes_what_runs_and_gives_back_the_rest(
    redis_url: str, prefix: str, sender: AsyncProducer
) -> None:
    """What has not begun is ready for others at once and has spent no attempt; what runs ends, and is acked."""
    worker = new_worker(redis_url, prefix, concurrency=1, prefetch=5)
    begun, gate = _hang(worker)
    await sender.send_many("orders", [Message(body=b"x", id=f"m{n}") for n in range(2)])
    settings = ConsumerSettings(redis_url=redis_url, prefix=prefix)
    async with AsyncConsumer("orders", "billing", settings=settings) as other:
        serving = asyncio.create_task(worker.serve())
        await wait_until_async(lambda: begun)
        worker.stop()
        given_back = await other.read(wait=10)
        assert not serving.done()
        gate.set()
        await serving
        assert begun.ids == ["m0"]
        assert [(delivery.id, delivery.attempt) for delivery in given_back] == [("m1", 1)]
        found = await sender.find("orders", "m0")
        assert found is not None
        assert found.state is State.FINISHED
        assert await other.read() == []


async def test_what_has_not_begun_does_not_wait_for_the_last_read(
    redis_url: str, prefix: str, sender: AsyncProducer, client: redis.Redis
) -> None:
    """It is given back while the worker is still waited for at the server, and what runs ends, and is the last."""
    worker = new_worker(redis_url, prefix, concurrency=2, block_s=30)
    begun, gate = _hang(worker, concurrency=1)
    worker.on("quiet")(begun.append)
    await sender.send_many("orders", [Message(body=b"x", id=f"m{n}") for n in range(2)])
    settings = ConsumerSettings(redis_url=redis_url, prefix=prefix)
    async with AsyncConsumer("orders", "billing", settings=settings) as other:
        serving = asyncio.create_task(worker.serve())
        await wait_until_async(lambda: begun and client.info("clients")["blocked_clients"])
        worker.stop()
        given_back = await other.read(wait=10)
        assert [delivery.id for delivery in given_back] == ["m1"]
        gate.set()
        # The last read brings something that is not begun any more.
        await sender.send("quiet", b"x", id="late")
        await serving
    assert begun.ids == ["m0"]
    found = await sender.find("quiet", "late")
    assert found is not None
    assert (found.state, found.attempts) == (State.READY, 0)


async def test_a_worker_may_be_stopped_as_it_connects(redis_url: str, prefix: str) -> None:
    """Its tasks heed their cancellation, also where the first thing that they do is to find the master."""
    worker = new_worker(redis_url, prefix)
    _hang(worker)
    serving = asyncio.create_task(worker.serve())
    await asyncio.sleep(0)
    worker.stop()
    async with asyncio.timeout(20):
        await serving


class _Wrapped(Exception):
    pass


@pytest.mark.parametrize("kind", ["handler", "middleware", "batch", "gathering", "task group", "wrapped"])
async def test_a_drain_does_not_wait_for_ever(redis_url: str, prefix: str, sender: AsyncProducer, kind: str) -> None:
    """A handler that outlasts `drain_s` is cancelled, and its message given back, even at its last attempt."""
    worker, gate = new_worker(redis_url, prefix, drain_s=0.05), asyncio.Event()
    begun = list[str]()

    async def wait() -> None:
        begun.append(kind)
        await gate.wait()

    if kind == "middleware":

        @worker.use
        async def around(delivery: Delivery, call_next: Callable[[Delivery], Any]) -> None:
            await wait()
            await call_next(delivery)

    async def handle(_: object) -> None:
        if kind == "task group":
            async with asyncio.TaskGroup() as group:
                group.create_task(wait())
        elif kind == "wrapped":
            try:
                await wait()
            except BaseException as error:
                raise _Wrapped from error
        else:
            await wait()

    if kind in ("batch", "gathering"):
        worker.on("orders", batch=2, within=0 if kind == "batch" else 60)(handle)
    else:
        worker.on("orders")(handle)
    ids = ["a", "b", "c"] if kind == "gathering" else ["a"]
    await sender.send_many("orders", [Message(body=b"x", id=id, max_retries=0) for id in ids])
    async with working(worker):
        await wait_until_async(lambda: begun)
    settings = ConsumerSettings(redis_url=redis_url, prefix=prefix)
    async with AsyncConsumer("orders", "billing", settings=settings) as other:
        given_back = await other.read(limit=3)
    assert {(delivery.id, delivery.attempt) for delivery in given_back} == {(id, 1) for id in ids}


@pytest.mark.parametrize("kind", ["coroutine", "function"])
async def test_what_ends_by_itself_as_a_drain_ends_counts(
    *, redis_url: str, prefix: str, sender: AsyncProducer, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is acked if its handler returns, and fails if that raises an error of its own or says what it wants."""
    worker, gate, begun = new_worker(redis_url, prefix, drain_s=0.05), threading.Event(), Handled()

    def end(delivery: Delivery) -> None:
        if delivery.id == "fails":
            raise ValueError("no")
        if delivery.id == "rejects":
            raise Reject

    async def coroutine(delivery: Delivery) -> None:
        begun.append(delivery)
        with suppress(asyncio.CancelledError):
            await idle_async(60)
        end(delivery)

    def function(delivery: Delivery) -> None:
        begun.append(delivery)
        gate.wait()
        end(delivery)

    worker.on("orders")(coroutine if kind == "coroutine" else function)
    await sender.send_many("orders", [Message(body=b"x", id=id) for id in ("returns", "fails", "rejects")])
    caplog.set_level(logging.INFO, "lisa_consumer")
    async with working(worker):
        await wait_until_async(lambda: len(begun) == 3)
        worker.stop()
        await wait_until_async(lambda: "waiting for handlers" in caplog.text)
        gate.set()
    states = {id: found.state for id in begun.ids if (found := await sender.find("orders", id))}
    assert states == {"returns": State.FINISHED, "fails": State.RETRY, "rejects": State.GARBAGE}


@pytest.mark.parametrize("kind", ["function", "stubborn coroutine"])
async def test_what_does_not_end_is_not_given_up(redis_url: str, prefix: str, sender: AsyncProducer, kind: str) -> None:
    """A thread, or a coroutine that ignores its cancellation, runs on: its message must not begin elsewhere."""
    worker, begun, gate = new_worker(redis_url, prefix, drain_s=0.05), Handled(), threading.Event()

    def function(delivery: Delivery) -> None:
        begun.append(delivery)
        gate.wait()

    async def coroutine(delivery: Delivery) -> None:
        begun.append(delivery)
        while not gate.is_set():
            with suppress(asyncio.CancelledError):
                await idle_async(0.01)

    worker.on("orders")(function if kind == "function" else coroutine)
    await sender.send("orders", b"x", id="a")
    try:
        async with working(worker):
            await wait_until_async(lambda: begun)
        found = await sender.find("orders", "a")
        assert found is not None
        assert (found.state, found.copies[0].failure) == (State.DELIVERED, None)
    finally:
        gate.set()
        await wait_until_async(lambda: not any(task.get_name() == HANDLER for task in asyncio.all_tasks()))


async def test_a_drain_keeps_the_order(redis_url: str, prefix: str, sender: AsyncProducer) -> None:
    """What is held of quick messages is handled, as it would else come behind the younger ones that are ready."""
    worker = new_worker(redis_url, prefix, concurrency=1)
    handled = Handled()

    @worker.on("orders")
    async def handle(delivery: Delivery) -> None:
        handled.append(delivery)
        await idle_async(0.002)
        if len(handled) == 50:
            worker.stop()

    ids = [f"m{n:04}" for n in range(500)]
    await sender.send_many("orders", [Message(body=b"x", id=id) for id in ids])
    await worker.serve()
    settings = ConsumerSettings(redis_url=redis_url, prefix=prefix)
    async with AsyncConsumer("orders", "billing", settings=settings) as other:
        left = await other.read(500)
    assert handled.ids + [delivery.id for delivery in left] == ids
    assert len(left) > 100


async def test_a_drain_gives_back_what_turns_out_slow(redis_url: str, prefix: str, sender: AsyncProducer) -> None:
    """What was to begin soon, and has not after a quarter of the drain, is given back while the others run on."""
    worker = new_worker(redis_url, prefix, concurrency=1, drain_s=2)
    handled, gate = Handled(), asyncio.Event()

    @worker.on("orders")
    async def handle(delivery: Delivery) -> None:
        handled.append(delivery)
        if len(handled) == 20:
            worker.stop()
            await gate.wait()

    await sender.send_many("orders", [Message(body=b"x", id=f"m{n:04}") for n in range(30)])
    settings = ConsumerSettings(redis_url=redis_url, prefix=prefix)
    async with AsyncConsumer("orders", "billing", settings=settings) as other:
        serving = asyncio.create_task(worker.serve())
        await wait_until_async(lambda: len(handled) == 20)
        given_back: list[Delivery] = []
        while len(given_back) < 10:
            given_back += await other.read(wait=10)
        assert not serving.done()
        gate.set()
        await serving
    assert len(handled) == 20
    assert {delivery.attempt for delivery in given_back} == {1}


async def test_what_runs_has_begun_though_what_was_marked_is_given_back(
    redis_url: str, prefix: str, sender: AsyncProducer, client: redis.Redis
) -> None:
    """The last of what was to begin soon carries the mark of all before it: else a crash in the drain would be free."""
    worker = new_worker(redis_url, prefix, concurrency=2, drain_s=4)
    handled, gate = Handled(), asyncio.Event()

    @worker.on("orders")
    async def handle(delivery: Delivery) -> None:
        handled.append(delivery)
        if delivery.body == b"hangs":
            await gate.wait()

    ready = ShardKeys(prefix, "orders").of("ready")

    def counters() -> list[int]:
        rows = client.xpending_range(ready, "billing", "-", "+", 100)
        return [row["times_delivered"] for row in rows]

    serving = asyncio.create_task(worker.serve())
    await sender.send_many("orders", [Message(body=b"x") for _ in range(300)])
    await wait_until_async(lambda: len(handled) == 300 and not counters())
    await sender.send_many("orders", [Message(body=b"hangs") for _ in range(12)])
    await wait_until_async(lambda: len(counters()) == 12 and StartMark.YES in counters()[2:])
    worker.stop()
    await wait_until_async(lambda: len(counters()) == 2)
    assert counters()[1] == StartMark.YES
    gate.set()
    await serving


async def test_a_cancelled_worker_leaves_nothing_running(redis_url: str, prefix: str, sender: AsyncProducer) -> None:
    """Cancelling `serve()` cancels the handlers; all messages are given back, and no task is left."""
    worker = new_worker(redis_url, prefix, concurrency=2)
    begun, _ = _hang(worker)
    await sender.send_many("orders", [Message(body=b"x", id=f"m{n}") for n in range(4)])
    tasks = asyncio.all_tasks()
    serving = asyncio.create_task(worker.serve())
    await wait_until_async(lambda: len(begun) == 2)
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert asyncio.all_tasks() == tasks
    assert begun.ids == ["m0", "m1"]
    for n in range(4):
        found = await sender.find("orders", f"m{n}")
        assert found is not None
        assert (found.state, found.attempts) == (State.READY, 0)


async def test_a_lost_lease_is_logged_and_its_late_ack_counts(
    *,
    redis_url: str,
    prefix: str,
    sender: AsyncProducer,
    declare: Callable[..., Policy],
    housekeeper: Housekeeper,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """When a lease is lost all the same, the log says so; the ack withdraws the retry, and says that too."""
    declare(visibility_ms=300)
    worker = new_worker(redis_url, prefix)
    begun, gate = _hang(worker)
    await sender.send("orders", b"x", id="a")
    caplog.set_level(logging.WARNING, "lisa_consumer")
    async with working(worker):
        await wait_until_async(lambda: begun)
        assert await housekeeper.reclaim("orders", "billing", after_s=60) == 1
        await wait_until_async(lambda: "lost the lease of" in caplog.text)
        gate.set()
        await wait_until_async(lambda: "was late" in caplog.text)
    found = await sender.find("orders", "a")
    assert found is not None
    assert found.state is State.FINISHED


async def test_a_drain_waits_for_a_batch_whose_first_delivery_was_skipped(
    *,
    redis_url: str,
    prefix: str,
    sender: AsyncProducer,
    declare: Callable[..., Policy],
    client: redis.Redis,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The first of a batch has lost its lease while the batch gathered; the handler of the others still counts."""
    declare(visibility_ms=300)
    worker = new_worker(redis_url, prefix)
    begun, gate = list[list[str]](), asyncio.Event()

    @worker.on("orders", batch=2, within=30)
    async def handle(batch: list[Delivery]) -> None:
        begun.append([delivery.id for delivery in batch])
        await gate.wait()

    await sender.send("orders", b"x", id="a")
    caplog.set_level(logging.INFO, "lisa_consumer")
    serving = asyncio.create_task(worker.serve())
    ready = ShardKeys(prefix, "orders").of("ready")
    await wait_until_async(lambda: any(group["pending"] for group in client.xinfo_groups(ready)))
    ((entry, _),) = client.xrange(ready)
    client.xack(ready, "billing", entry)
    await wait_until_async(lambda: "lost the lease of" in caplog.text)
    await sender.send("orders", b"x", id="b")
    await wait_until_async(lambda: "released 1 deliveries" in caplog.text or "released 0 deliveries" in caplog.text)
    assert begun == [["b"]]
    worker.stop()
    await wait_until_async(lambda: "waiting for handlers: 1," in caplog.text)
    assert not serving.done()
    gate.set()
    await serving
    found = await sender.find("orders", "b")
    assert found is not None
    assert found.state is State.FINISHED


async def test_a_frozen_server_does_not_make_the_drain_longer(own_server: OwnServer) -> None:
    """A read that is under way has no answer for a minute; a drain of half a second is over before that."""
    server = own_server()
    worker = new_worker(server.url, "lisa", drain_s=0.5, timeout_s=60)
    begun, _ = _hang(worker)
    async with AsyncProducer(server.url) as producer:
        await producer.send("orders", b"x", id="a")
    serving = asyncio.create_task(worker.serve())
    await wait_until_async(lambda: begun)
    server.freeze()
    worker.stop()
    done, _ = await asyncio.wait([serving], timeout=30)
    server.thaw()
    assert done == {serving}
    await serving


async def test_a_stale_ack_is_logged_and_changes_nothing(
    *,
    redis_url: str,
    prefix: str,
    sender: AsyncProducer,
    declare: Callable[..., Policy],
    housekeeper: Housekeeper,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Once another consumer has the message, the first one's ack is stale (promise 5)."""
    declare(visibility_ms=300)
    worker = new_worker(redis_url, prefix, concurrency=1, prefetch=0)
    begun, gate = _hang(worker)
    await sender.send("orders", b"x", id="a")
    settings = ConsumerSettings(redis_url=redis_url, prefix=prefix)
    async with AsyncConsumer("orders", "billing", settings=settings) as other, working(worker):
        await wait_until_async(lambda: begun)
        await housekeeper.reclaim("orders", "billing", after_s=60)
        await housekeeper.promote("orders", after_s=120)
        [delivery] = await other.read()
        gate.set()
        await wait_until_async(lambda: "was stale" in caplog.text)
        assert await other.extend(delivery) == [True]
    found = await sender.find("orders", "a")
    assert found is not None
    assert found.state is State.DELIVERED


async def test_a_restart_of_the_server_costs_no_second_delivery(own_server: OwnServer, prefix: str) -> None:
    """What is handled while the server is away is acked when it is back, and the worker reads on (promise 14)."""
    server = own_server(appendonly="yes")
    worker = new_worker(server.url, prefix)
    begun, gate = _hang(worker)
    settings = ProducerSettings(redis_url=server.url, prefix=prefix)
    async with AsyncProducer(settings=settings) as producer, managed(server.url, prefix), working(worker):
        await producer.send("orders", b"x", id="a")
        await wait_until_async(lambda: begun)
        await asyncio.to_thread(server.stop)
        gate.set()
        await asyncio.to_thread(server.start)
        await producer.send_many("orders", [Message(body=b"x", id="b"), Message(body=b"x", id="c", delay=0.1)])
        await wait_until_async(lambda: len(begun) == 3)

        async def all_acked() -> bool:
            found = [await producer.find("orders", id) for id in ("a", "b", "c")]
            return all(f is not None and f.state is State.FINISHED for f in found)

        await wait_until_async(all_acked)
    assert [(delivery.id, delivery.attempt) for delivery in begun] == [("a", 1), ("b", 1), ("c", 1)]


async def test_a_worker_may_start_before_its_server(own_server: OwnServer, prefix: str) -> None:
    """It retries until the server is there; it also stops before that."""
    server = own_server()
    await asyncio.to_thread(server.stop)
    worker, hopeless = new_worker(server.url, prefix), new_worker(server.url, prefix)
    begun, gate = _hang(worker)
    _hang(hopeless)
    gate.set()
    async with working(worker):
        async with working(hopeless):
            pass
        await asyncio.to_thread(server.start)
        async with AsyncProducer(settings=ProducerSettings(redis_url=server.url, prefix=prefix)) as producer:
            await producer.send("orders", b"x")
        await wait_until_async(lambda: begun)


def _consumers(client: redis.Redis, prefix: str) -> list[str]:
    ready = ShardKeys(prefix, "orders").of("ready")
    groups = client.xinfo_groups(ready) if client.exists(ready) else []
    return [info["name"].decode() for group in groups for info in client.xinfo_consumers(ready, group["name"])]


def _is_its_only_consumer(client: redis.Redis, prefix: str, worker: Worker) -> bool:
    return [name.startswith(worker.name) for name in _consumers(client, prefix)] == [True]


def _last_seen_s(client: redis.Redis, ready: str) -> float:
    """When a group's only consumer last came, by the server's clock."""
    (info,), (s, us) = client.xinfo_consumers(ready, "billing"), client.time()
    return float(s + us / 1e6 - info["idle"] / 1000)


async def test_the_consumers_of_a_group_are_the_live_ones(
    redis_url: str, prefix: str, sender: AsyncProducer, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker is one before its first message, stays one while it has nothing to do, and is none when it has ended."""
    monkeypatch.setattr("lisa_consumer.worker.oversight._BEAT_S", 0.05)
    # Where reads do not, as those of Redis 7.0.
    worker = new_worker(redis_url, prefix, block_s=30)
    _hang(worker)
    ready = ShardKeys(prefix, "orders").of("ready")
    async with working(worker):
        await wait_until_async(lambda: _is_its_only_consumer(client, prefix, worker))
        first = _last_seen_s(client, ready)
        await wait_until_async(lambda: _last_seen_s(client, ready) > first + 0.1)
        [info] = client.xinfo_consumers(ready, "billing")
        # It may be removed all the same, when it was frozen.
        client.xgroup_delconsumer(ready, "billing", info["name"])
        await wait_until_async(lambda: _is_its_only_consumer(client, prefix, worker))
        worker.stop()
        await sender.send("orders", b"ends the last read")
    assert _consumers(client, prefix) == []


@pytest.mark.parametrize("count", [3, 13, 205])
async def test_a_burst_waits_for_no_more_messages(
    redis_url: str, prefix: str, sender: AsyncProducer, count: int
) -> None:
    """The last batch begins once nothing else is ready, however long a batch may gather."""
    worker, batches = new_worker(redis_url, prefix), list[int]()

    @worker.on("orders", batch=10, within=60)
    async def handle(deliveries: list[Delivery]) -> None:
        batches.append(len(deliveries))

    await sender.send_many("orders", [Message(body=b"x")] * count)
    async with asyncio.timeout(20):
        await worker.serve(burst=True)
    assert batches == [10] * (count // 10) + [count % 10]
