"""An abort ends a running handler by the id of its message."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from lisa_common.errors import UnknownTopic
from lisa_common.model.policy import Policy
from lisa_consumer import AsyncConsumer, Delivery, Worker
from lisa_manager import AbortOutcome, AsyncAdmin
from lisa_producer import AsyncProducer, State
from support.commands import Commands, Ran
from support.running import new_worker, working
from support.waiting import wait_until_async


@pytest.fixture
def worker(redis_url: str, prefix: str) -> Worker:
    """A worker that does not run yet."""
    return new_worker(redis_url, prefix)


class _Hanging:
    """A handler that hangs until it is cancelled, except with messages whose ids begin with "quick"."""

    def __init__(self) -> None:
        self.begun: asyncio.Queue[Delivery] = asyncio.Queue()
        self.cancelled = asyncio.Event()
        self.handled: asyncio.Queue[str] = asyncio.Queue()

    async def __call__(self, delivery: Delivery) -> None:
        """Handles a message."""
        self.begun.put_nowait(delivery)
        if delivery.id.startswith("quick"):
            self.handled.put_nowait(delivery.id)
            return
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


@pytest.mark.parametrize("visibility_ms", [30_000, 300])
async def test_an_abort_cancels_a_handler_and_nothing_is_retried(
    *,
    worker: Worker,
    sender: AsyncProducer,
    admin: AsyncAdmin,
    declare: Callable[..., Policy],
    caplog: pytest.LogCaptureFixture,
    visibility_ms: int,
) -> None:
    """However soon the lease is seen to be lost; the message is a dead letter, and the slot is free again."""
    declare("orders", visibility_ms=visibility_ms)
    handler = _Hanging()
    worker.on("orders", concurrency=1)(handler)
    async with working(worker):
        await sender.send("orders", b"x", id="a")
        await handler.begun.get()
        assert await admin.abort("orders", "a") is AbortOutcome.ABORTED
        await handler.cancelled.wait()
        await sender.send("orders", b"x", id="quick")
        assert await handler.handled.get() == "quick"
    found = await sender.find("orders", "a")
    assert found
    [copy] = found.copies
    assert copy.failure
    assert (found.state, found.attempts, copy.failure.reason) == (State.GARBAGE, 1, "aborted")
    assert [record.getMessage() for record in caplog.records if "aborted it" in record.getMessage()]
    assert await admin.abort("orders", "a") is AbortOutcome.GARBAGE


async def test_what_waits_in_the_worker_does_not_begin(
    worker: Worker, sender: AsyncProducer, admin: AsyncAdmin
) -> None:
    """A delivery behind a handler that hangs."""
    handler = _Hanging()
    worker.on("orders", concurrency=1)(handler)
    async with working(worker):
        await sender.send("orders", b"x", id="a")
        await handler.begun.get()
        await sender.send("orders", b"x", id="b")

        async def is_aborted() -> bool:
            return await admin.abort("orders", "b") is AbortOutcome.ABORTED

        await wait_until_async(is_aborted)
        assert await admin.abort("orders", "b") is AbortOutcome.GARBAGE
        await sender.send("orders", b"x", id="quick")
        assert await admin.abort("orders", "a") is AbortOutcome.ABORTED
        assert await handler.handled.get() == "quick"
    assert [handler.begun.get_nowait().id for _ in range(handler.begun.qsize())] == ["quick"]


async def test_the_others_of_a_batch_are_given_back(worker: Worker, sender: AsyncProducer, admin: AsyncAdmin) -> None:
    """The call is cancelled as a whole; the others come again without an attempt spent."""
    calls: asyncio.Queue[list[Delivery]] = asyncio.Queue()

    @worker.on("orders", batch=2, within=5)
    async def handle(deliveries: list[Delivery]) -> None:
        calls.put_nowait(list(deliveries))
        if len(deliveries) == 2:
            await asyncio.Event().wait()

    await sender.send("orders", b"x", id="a")
    await sender.send("orders", b"x", id="b")
    async with working(worker):
        assert len(await calls.get()) == 2
        assert await admin.abort("orders", "a") is AbortOutcome.ABORTED
        [again] = await calls.get()
    assert (again.id, again.attempt) == ("b", 1)
    found = await sender.find("orders", "a")
    assert found
    assert found.state is State.GARBAGE


@pytest.mark.parametrize("heard", [False, True])
async def test_a_thread_runs_on_and_its_end_does_not_count(
    *, worker: Worker, sender: AsyncProducer, admin: AsyncAdmin, caplog: pytest.LogCaptureFixture, heard: bool
) -> None:
    """No thread can be stopped; the message stays aborted, whether the worker has heard of that or not."""
    begun, gate = threading.Event(), threading.Event()

    @worker.on("orders")
    def handle(_: Delivery) -> None:
        begun.set()
        gate.wait(60)

    async with working(worker):
        await sender.send("orders", b"x", id="a")
        await asyncio.to_thread(begun.wait)
        assert await admin.abort("orders", "a") is AbortOutcome.ABORTED
        if heard:
            assert worker._life
            [held] = worker._life.leases._held.values()
            await wait_until_async(lambda: held.is_aborted, what="the worker to hear of it")
        gate.set()
    assert ("aborted it" in caplog.text) == heard
    found = await sender.find("orders", "a")
    assert found
    assert found.state is State.GARBAGE


async def test_a_coroutine_that_swallows_its_cancellation_is_aborted(
    worker: Worker, sender: AsyncProducer, admin: AsyncAdmin
) -> None:
    """It may tidy up and return; what it would have sent is not sent."""
    begun, ended = asyncio.Event(), asyncio.Event()

    @worker.on("orders")
    async def handle(delivery: Delivery) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            delivery.then(b"next", delay=60)
            ended.set()

    async with working(worker):
        await sender.send("orders", b"x", id="a")
        await begun.wait()
        assert await admin.abort("orders", "a") is AbortOutcome.ABORTED
        await ended.wait()
    found = await sender.find("orders", "a")
    assert found
    assert found.state is State.GARBAGE


async def test_a_plain_consumer_learns_by_its_ack(
    sender: AsyncProducer, admin: AsyncAdmin, reading: Callable[..., AsyncConsumer]
) -> None:
    """Its lease is lost, and its nack and ack are stale."""
    consumer = reading("orders")
    await sender.send("orders", b"x", id="a")
    [delivery] = await consumer.read(wait=30)
    assert await admin.abort("orders", "a") is AbortOutcome.ABORTED
    assert await consumer.extend(delivery) == [False]
    assert await consumer.nack(delivery) == ["stale"]
    assert await consumer.ack(delivery) == ["stale"]


async def test_where_nothing_runs_the_outcome_says_so(sender: AsyncProducer, admin: AsyncAdmin) -> None:
    """And nothing changes."""
    await sender.send("orders", b"x", id="a", delay=60)
    assert await admin.abort("orders", "a") is AbortOutcome.IDLE
    assert await admin.abort("orders", "b") is AbortOutcome.UNKNOWN
    with pytest.raises(UnknownTopic):
        await admin.abort("nothing", "a")
    found = await sender.find("orders", "a")
    assert found
    assert found.state is State.WAITING


async def test_of_a_former_shard(
    worker: Worker, sender: AsyncProducer, admin: AsyncAdmin, declare: Callable[..., Policy]
) -> None:
    """After a reshard a message is aborted where it is."""
    declare("orders")
    handler = _Hanging()
    worker.on("orders")(handler)
    async with working(worker):
        await sender.send("orders", b"x", id="a")
        await handler.begun.get()
        await admin.reshard("orders", 2)
        assert await admin.abort("orders", "a") is AbortOutcome.ABORTED
        await handler.cancelled.wait()


async def test_the_command(worker: Worker, sender: AsyncProducer, commands: Commands) -> None:
    """It prints outcomes, and exits with 1 if any message is not aborted."""
    handler = _Hanging()
    worker.on("orders")(handler)

    async def manage(*words: str) -> Ran:
        return await asyncio.to_thread(commands.manager, *words)

    async with working(worker):
        await sender.send("orders", b"x", id="a")
        await sender.send("orders", b"x", id="b", delay=60)
        await handler.begun.get()
        done = await manage("abort", "orders", "a", "")
        assert (done.code, "id must be" in done.err) == (2, True), "and nothing is aborted"
        done = await manage("abort", "orders", "a", "a", "--json")
        assert (done.code, done.document) == (0, [{"id": "a", "outcome": "aborted"}]), "an id counts once"
        await handler.cancelled.wait()
        done = await manage("abort", "orders", "a", "b")
        assert (done.code, done.rows[1:]) == (1, [["a", "garbage"], ["b", "idle"]])
        listed = await manage("garbage", "list", "orders", "--reason", "aborted", "--json")
        assert "aborted by an operator" in listed.out
