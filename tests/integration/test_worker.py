"""Workers: what runs at once, and what becomes of a message by the way its handler ends."""

import asyncio
import gc
import logging
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise
from typing import Any, Self

import pytest
import redis

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.errors import InvalidInput
from lisa_common.model.keys import ShardKeys
from lisa_common.model.policy import Policy
from lisa_common.observing.health import Health
from lisa_common.protocol import managing
from lisa_consumer import AsyncConsumer, BatchFailed, ConsumerSettings, Delivery, RateLimited, Reject, Retry, Worker
from lisa_consumer.delivery.core import Core
from lisa_consumer.handling.handler import Route
from lisa_consumer.worker import leases
from lisa_consumer.worker.held import HeldDelivery
from lisa_consumer.worker.life import Life
from lisa_producer import AsyncProducer, Message, State
from support import count_calls, idle_async, keys_left, wait_until, wait_until_async
from support.housekeeping import Housekeeper
from support.running import Handled, hang, managed, new_worker, working
from support.server import lease_ages_ms
from support.unspeakable import Unspeakable

Declare = Callable[..., Policy]
QUICK = {"backoff": "fixed", "backoff_base_ms": 10, "backoff_jitter": 0}
KINDS = pytest.mark.parametrize("kind", ["coroutine", "function"])


@pytest.fixture
def worker(redis_url: str, prefix: str) -> Worker:
    """A worker that does not run yet."""
    return new_worker(redis_url, prefix)


@pytest.fixture
async def manager(redis_url: str, prefix: str, declare: Declare) -> AsyncIterator[Any]:
    """A running manager."""
    declare(**QUICK)
    async with managed(redis_url, prefix) as running:
        yield running


def _as_kind(kind: str, handler: Callable[[Delivery], object]) -> Callable[[Delivery], Any]:
    """The handler as a plain function, or as a coroutine function."""

    async def coroutine(delivery: Delivery) -> None:
        handler(delivery)

    return handler if kind == "function" else coroutine


async def _drained(sender: AsyncProducer, *ids: str) -> None:
    async def done() -> bool:
        found = [await sender.find("orders", id) for id in ids]
        return all(f is None or f.state is State.FINISHED for f in found)

    await wait_until_async(done)


async def _garbage(sender: AsyncProducer, id: str) -> Any:
    async def found() -> Any:
        message = await sender.find("orders", id)
        return message if message and message.state is State.GARBAGE else None

    return await wait_until_async(found)


@pytest.mark.usefixtures("manager")
@KINDS
async def test_a_handler_that_returns_acks(
    worker: Worker, sender: AsyncProducer, client: redis.Redis, prefix: str, kind: str
) -> None:
    """Every message is handled once, whether it is due now or later; what is left is what a drained topic has."""
    handled = Handled()
    worker.on("orders")(_as_kind(kind, handled.append))
    async with working(worker):
        await sender.send_many("orders", [Message(body={"n": n}, delay=n / 100) for n in range(50)])
        await wait_until_async(lambda: len(handled) >= 50)
        keys = [f"{prefix}:topics", f"{prefix}:workers", ShardKeys(prefix, "orders").of("ready")]
        await wait_until_async(lambda: keys_left(client, prefix) == sorted(keys))
    assert sorted(delivery.json()["n"] for delivery in handled) == list(range(50))
    assert {delivery.attempt for delivery in handled} == {1}


@asynccontextmanager
async def _gate() -> AsyncIterator[asyncio.Event]:
    """Handlers wait at it; it opens at the end at the latest."""
    gate = asyncio.Event()
    try:
        yield gate
    finally:
        gate.set()


@KINDS
async def test_concurrency_bounds_what_runs_at_once(
    redis_url: str, prefix: str, sender: AsyncProducer, kind: str
) -> None:
    """So many run at once as the worker may have, and never more."""
    worker = new_worker(redis_url, prefix, concurrency=4)
    running, most, handled = Counter[str](), [0], Handled()

    def enter(delivery: Delivery) -> None:
        handled.append(delivery)
        running["now"] += 1
        most[0] = max(most[0], running["now"])

    async with _gate() as gate:

        async def coroutine(delivery: Delivery) -> None:
            enter(delivery)
            await gate.wait()
            running["now"] -= 1

        def function(delivery: Delivery) -> None:
            enter(delivery)
            wait_until(gate.is_set)
            running["now"] -= 1

        worker.on("orders")(coroutine if kind == "coroutine" else function)
        await sender.send_many("orders", [Message(body=b"x") for _ in range(20)])
        async with working(worker):
            await wait_until_async(lambda: len(handled) >= 4)
            gate.set()
            await wait_until_async(lambda: len(handled) >= 20)
    assert most == [4]


async def test_a_hanging_topic_does_not_delay_another(redis_url: str, prefix: str, sender: AsyncProducer) -> None:
    """A topic can always run a handler, however many messages of another hang or wait (promise 12)."""
    worker = new_worker(redis_url, prefix, concurrency=3, prefetch=2)
    handled = Handled()
    async with _gate() as gate:
        hanging = hang(worker, "slow", gate)
        worker.on("orders")(_as_kind("coroutine", handled.append))
        async with working(worker):
            await sender.send_many("slow", [Message(body=b"x") for _ in range(20)])
            await wait_until_async(lambda: len(hanging) == 2)
            for n in range(3):
                await sender.send_many("orders", [Message(body=b"x") for _ in range(10)])
                await wait_until_async(lambda n=n: len(handled) == 10 * (n + 1))
            assert len(hanging) == 2
            gate.set()
            await wait_until_async(lambda: len(hanging) == 20)


@pytest.mark.parametrize("kind", ["batches", "topics of a pattern"])
async def test_functions_that_hang_leave_a_thread_to_each_slot(
    *, redis_url: str, prefix: str, sender: AsyncProducer, declare: Declare, kind: str
) -> None:
    """Also where slots are more than `concurrency`: those of batches, and one for each topic of a pattern."""
    worker, gate = new_worker(redis_url, prefix, concurrency=1), threading.Event()
    begun, handled, names = Handled(), Handled(), set[str]()

    def handle(delivery: Delivery) -> None:
        names.add(threading.current_thread().name)
        (handled if delivery.topic == "orders.quick" else begun).append(delivery)
        if delivery.topic != "orders.quick":
            gate.wait()

    topics = ["orders.quick", *(f"orders.slow-{n}" for n in range(2))]
    for topic in topics:
        declare(topic)
    if kind == "batches":
        worker.on(*topics[1:], batch=10, within=0)(lambda batch: handle(batch[0]))
    worker.on(topics[0] if kind == "batches" else "orders.*", timeout=60)(handle)
    async with working(worker):
        try:
            for topic in topics[1:]:
                await sender.send(topic, b"x")
            await wait_until_async(lambda: len(begun) == 2)
            await sender.send("orders.quick", b"x")
            await wait_until_async(lambda: handled)
            assert len(names) == len(topics), "logs tell them apart"
        finally:
            gate.set()


@pytest.mark.parametrize("prefetch", [0, 1, 64])
async def test_no_handler_is_idle_behind_slow_ones(
    redis_url: str, prefix: str, sender: AsyncProducer, prefetch: int
) -> None:
    """As soon as one of them ends, another message begins, while the others hang."""
    worker = new_worker(redis_url, prefix, concurrency=4, prefetch=prefetch)
    begun, gates = Handled(), [asyncio.Event() for _ in range(6)]

    @worker.on("orders")
    async def wait(delivery: Delivery) -> None:
        begun.append(delivery)
        await gates[len(begun) - 1].wait()

    await sender.send_many("orders", [Message(body=b"x") for _ in range(6)])
    async with working(worker):
        for ended in range(3):
            await wait_until_async(lambda ended=ended: len(begun) == 4 + ended)
            gates[ended].set()
        for gate in gates:
            gate.set()


async def test_what_a_slow_worker_cannot_begin_soon_is_left_to_others(
    redis_url: str, prefix: str, sender: AsyncProducer
) -> None:
    """It holds one message beyond those that run."""
    worker = new_worker(redis_url, prefix, concurrency=1)
    settings = ConsumerSettings(redis_url=redis_url, prefix=prefix)
    await sender.send_many("orders", [Message(body=b"x", id=f"m{n}") for n in range(10)])
    async with _gate() as gate, AsyncConsumer("orders", "billing", settings=settings) as other:
        begun = hang(worker, "orders", gate)
        async with working(worker):
            await wait_until_async(lambda: begun)
            assert [delivery.id for delivery in await other.read()] == [f"m{n}" for n in range(2, 10)]
            gate.set()


async def test_failed_deliveries_are_freed_at_once(
    redis_url: str, prefix: str, sender: AsyncProducer, caplog: pytest.LogCaptureFixture
) -> None:
    """Not when the garbage collector comes: a body may be large, and the traceback of a failure leads back to it."""
    # Kept records would keep the tracebacks.
    caplog.set_level(logging.CRITICAL, "lisa_consumer")
    worker, failed = new_worker(redis_url, prefix), set[str]()

    @worker.on("orders")
    async def fail(delivery: Delivery) -> None:
        failed.add(delivery.id)
        raise ValueError(delivery.id)

    def held() -> int:
        return sum(isinstance(each, HeldDelivery) for each in gc.get_objects())

    gc.collect()
    # Threads of other tests may still end.
    others = held()
    gc.disable()
    try:
        await sender.send_many("orders", [Message(body=b"x") for _ in range(40)])
        async with working(worker):
            await wait_until_async(lambda: len(failed) == 40)
            await wait_until_async(lambda: held() <= others)
    finally:
        gc.enable()


async def test_few_large_messages_are_read_ahead(
    redis_url: str, prefix: str, sender: AsyncProducer, client: redis.Redis
) -> None:
    """However quick their handler is: a worker holds no more of them than one request brings, and what runs."""
    worker = new_worker(redis_url, prefix, concurrency=1)
    ready = ShardKeys(prefix, "orders").of("ready")
    handled = Handled()
    async with _gate() as gate:

        @worker.on("orders")
        async def note(delivery: Delivery) -> None:
            handled.append(delivery)
            if len(handled) == 10:
                await gate.wait()

        await sender.send_many("orders", [Message(body=bytes(1 << 20)) for _ in range(40)])
        async with working(worker):
            await wait_until_async(lambda: len(handled) == 10)
            await idle_async(0.3)
            assert 1 < client.xpending(ready, "billing")["pending"] <= 6
            gate.set()
            await wait_until_async(lambda: len(handled) == 40)


async def test_quick_handlers_are_read_ahead_for(
    redis_url: str, prefix: str, sender: AsyncProducer, client: redis.Redis
) -> None:
    """Once they are known to be quick, reads bring batches."""
    worker = new_worker(redis_url, prefix, concurrency=1)
    handled = Handled()
    worker.on("orders")(_as_kind("coroutine", handled.append))
    await sender.send_many("orders", [Message(body=b"x") for _ in range(500)])
    before = count_calls(client, "xreadgroup")
    async with working(worker):
        await wait_until_async(lambda: len(handled) == 500)
        assert count_calls(client, "xreadgroup") - before < 100


async def test_a_topic_with_little_room_does_not_slow_another_down(
    redis_url: str, prefix: str, sender: AsyncProducer, client: redis.Redis
) -> None:
    """A read has one limit for all of its topics, so what has room for one message is read by itself."""
    worker = new_worker(redis_url, prefix, concurrency=32)
    handled = Handled()
    async with _gate() as gate:
        serial = hang(worker, "serial", gate, concurrency=1)
        worker.on("orders")(_as_kind("coroutine", handled.append))
        async with working(worker):
            await sender.send("serial", b"x")
            await wait_until_async(lambda: serial)
            before = count_calls(client, "xreadgroup")
            await sender.send_many("orders", [Message(body=b"x") for _ in range(1000)])
            await wait_until_async(lambda: len(handled) == 1000)
            assert count_calls(client, "xreadgroup") - before < 200
            gate.set()


async def test_a_full_topic_and_others_are_read_side_by_side(
    redis_url: str, prefix: str, sender: AsyncProducer, client: redis.Redis
) -> None:
    """The others are waited for at the server, and what gets room meanwhile is read meanwhile."""
    worker = new_worker(redis_url, prefix, concurrency=4, block_s=30)
    handled = Handled()
    async with _gate() as gate:
        slow = hang(worker, "slow", gate, concurrency=1)
        worker.on("orders")(_as_kind("coroutine", handled.append))
        await sender.send_many("slow", [Message(body=b"x") for _ in range(10)])
        async with working(worker):
            await wait_until_async(lambda: slow)
            for n in range(3):
                await wait_until_async(lambda: client.info("clients")["blocked_clients"] == 1)
                await sender.send("orders", b"x")
                await wait_until_async(lambda n=n: len(handled) == n + 1)
            gate.set()
            await wait_until_async(lambda: len(slow) == 10)
            before = count_calls(client, "xreadgroup")
            await idle_async(0.5)
            assert count_calls(client, "xreadgroup") - before < 50
            # A worker hears of its stop when its read ends.
            worker.stop()
            await sender.send("orders", b"x")


@pytest.mark.parametrize("broken", ["ready", "messages", "failures"])
async def test_a_broken_topic_does_not_delay_another(
    *, redis_url: str, prefix: str, sender: AsyncProducer, client: redis.Redis, broken: str
) -> None:
    """A topic that cannot be read, fetched or settled costs itself, and lines in the log (promise 12)."""
    worker = new_worker(redis_url, prefix, concurrency=4, prefetch=4)
    handled, bad = Handled(), ShardKeys(prefix, "bad")
    async with _gate() as gate:
        begun = hang(worker, "bad", gate)
        worker.on("orders")(_as_kind("coroutine", handled.append))
        await sender.send_many("bad", [Message(body=b"x") for _ in range(3)])
        if broken != "failures":
            client.set(bad.of(broken), "none of ours")
        async with working(worker):
            if broken == "failures":
                await wait_until_async(lambda: len(begun) == 3)
                client.set(bad.of(broken), "none of ours")
                gate.set()
            sent = await sender.send_many("orders", [Message(body=b"x") for _ in range(40)])
            await wait_until_async(lambda: len(handled) >= 40)
            await _drained(sender, *(str(result.id) for result in sent.results))
    assert len(handled) == 40


async def test_capacity_that_shrinks_as_a_read_begins(
    redis_url: str, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    """When a handler turns out to be slow in that very moment, the topic is read as it was meant to be."""
    settings = ConsumerSettings(redis_url=redis_url, prefix=prefix, block_s=0.1)
    routes = {topic: Route(topic, print, 1) for topic in ("full", "quick")}
    async with AsyncConnection(redis_url) as connection:
        life = Life(
            *(connection, connection, Core(prefix, "billing"), routes),
            threads=ThreadPoolExecutor(1),
            settings=settings,
            stopping=asyncio.Event(),
            health=Health(),
            burst=False,
        )
        windows = life._windows
        for topic, held in (("full", 65), ("quick", 20)):
            windows[topic].observe([0.001])
            windows[topic].take(held)
        reading = asyncio.create_task(life._fetcher._read_once())
        asyncio.get_running_loop().call_soon(windows["quick"].observe, [1.0])
        await reading
    assert (windows["quick"].capacity, caplog.messages) == (-18, [])


async def test_a_broken_topic_makes_no_worker_busy(
    redis_url: str, prefix: str, sender: AsyncProducer, client: redis.Redis
) -> None:
    """While it is left alone, the others are waited for at the server, however little capacity one of them has."""
    worker = new_worker(redis_url, prefix, concurrency=32)
    handled = Handled()
    for topic, bound in (("bad", 32), ("serial", 1), ("orders", 32)):
        worker.on(topic, concurrency=bound)(_as_kind("coroutine", handled.append))
    client.set(ShardKeys(prefix, "bad").of("ready"), "none of ours")
    async with working(worker):
        await sender.send("orders", b"x")
        await wait_until_async(lambda: handled)
        before = count_calls(client, "xreadgroup")
        await idle_async(1)
        # Three for each wait of a tenth of a second.
        assert count_calls(client, "xreadgroup") - before < 60


async def test_a_topic_may_have_a_bound_of_its_own(worker: Worker, sender: AsyncProducer) -> None:
    """`on(concurrency=1)` handles the messages of a topic one by one, in the order in which they fell due."""
    handled, running = Handled(), Counter[str]()

    @worker.on("orders", concurrency=1)
    async def handle(delivery: Delivery) -> None:
        running["now"] += 1
        assert running["now"] == 1
        await asyncio.sleep(0)
        handled.append(delivery)
        running["now"] -= 1

    await sender.send_many("orders", [Message(body=b"x", id=f"m{n}") for n in range(20)])
    async with working(worker):
        await wait_until_async(lambda: len(handled) == 20)
    assert handled.ids == [f"m{n}" for n in range(20)]


class _Careless(Retry):
    """Does not call what it inherits from."""

    def __init__(self) -> None:
        pass


class _Curt(RateLimited):
    def __init__(self) -> None:
        pass


class _Soon(RateLimited):
    def __init__(self) -> None:
        super().__init__(1)
        self.delay_ms: Any = "soon"


class _Undecided(Exception):
    def __bool__(self) -> bool:
        raise RuntimeError("neither true nor false")


class _Unknown(BatchFailed):
    def __init__(self) -> None:
        pass


class _Changed(BatchFailed):
    def __init__(self) -> None:
        super().__init__([])
        self.failed: Any = [None]


class _Sealed(ExceptionGroup[Exception]):
    def __new__(cls) -> Self:
        return super().__new__(cls, "several", [ValueError()])


def _unreadable(name: str, base: type[Exception] = Exception) -> Any:
    """A class of exceptions with an attribute that raises when it is read."""

    def refuse(_: object) -> None:
        raise RuntimeError(name)

    return pytest.param(type("_Unreadable", (base,), {name: property(refuse)}), id=name)


_UNREADABLE = [_unreadable(name) for name in ("__cause__", "__traceback__", "__dict__", "__class__")]


@pytest.mark.parametrize("batch", [None, 2])
@pytest.mark.parametrize(
    "error",
    [
        *(_Careless, _Curt, _Soon, _Undecided, _Unknown, _Changed),
        *(*_UNREADABLE, _unreadable("exceptions", _Sealed), _unreadable("failed", BatchFailed)),
    ],
)
async def test_an_error_that_cannot_say_what_it_asks_for_is_a_failure(
    *, worker: Worker, sender: AsyncProducer, error: type[Exception], batch: int | None
) -> None:
    """Its messages are retried: they are neither taken for handled nor kept until the worker ends."""

    async def handle(_: object) -> None:
        raise error

    worker.on("orders", **({"batch": batch} if batch else {}))(handle)
    await sender.send_many("orders", [Message(body=b"x", id=id) for id in "ab"])
    async with asyncio.timeout(20):
        await worker.serve(burst=True)
    for id in "ab":
        found = await sender.find("orders", id)
        assert found is not None
        assert (found.state, found.attempts) == (State.RETRY, 1)


@pytest.mark.usefixtures("manager")
@pytest.mark.parametrize("error", [Retry("later", delay=0.3), Retry("later")], ids=["delay", "backoff"])
async def test_retry_asks_for_another_delivery(worker: Worker, sender: AsyncProducer, error: Retry) -> None:
    """The message comes again after the handler's delay, or the policy's; not one ms earlier (promise 1)."""
    handled, moments = Handled(), []

    @worker.on("orders")
    async def handle(delivery: Delivery) -> None:
        handled.append(delivery)
        moments.append(time.monotonic())
        if delivery.attempt == 1:
            raise error

    await sender.send("orders", b"x", id="a")
    async with working(worker):
        await wait_until_async(lambda: len(handled) == 2)
        await _drained(sender, "a")
    assert [delivery.attempt for delivery in handled] == [1, 2]
    assert moments[1] - moments[0] >= (0.3 if error.delay_ms else 0.01)


class _Mute(Reject):
    def __init__(self, raised: type[BaseException]) -> None:
        super().__init__("")
        self._raised = raised

    def __str__(self) -> str:
        raise self._raised


@pytest.mark.parametrize("raised", [RuntimeError, SystemExit, KeyboardInterrupt, asyncio.CancelledError])
async def test_reject_without_a_text_ends_a_message(
    worker: Worker, sender: AsyncProducer, raised: type[BaseException]
) -> None:
    """Whatever its `__str__` raises."""

    @worker.on("orders")
    async def handle(_: Delivery) -> None:
        raise _Mute(raised)

    await sender.send("orders", b"x", id="a")
    await worker.serve(burst=True)
    failure = (await _garbage(sender, "a")).copies[0].failure
    assert failure.error == f"no text, as the __str__ of _Mute raised {raised.__name__}"


class _Text(str):
    __slots__ = ()

    def __getitem__(self, _: object) -> str:
        raise ValueError

    def __format__(self, _: str) -> str:
        raise ValueError


class _Spoken(Retry):
    def __str__(self) -> str:
        return _Text("later")


async def test_an_error_may_have_a_text_of_any_class(worker: Worker, sender: AsyncProducer) -> None:
    """It is stored as plain text."""

    @worker.on("orders")
    async def handle(_: Delivery) -> None:
        raise _Spoken

    await sender.send("orders", b"x", id="a")
    await worker.serve(burst=True)
    found = await sender.find("orders", "a")
    assert found is not None
    assert (found.state, found.copies[0].failure.error) == (State.RETRY, "later")


async def test_reject_ends_a_message(worker: Worker, sender: AsyncProducer) -> None:
    """It is garbage at once, with the handler's reason."""

    @worker.on("orders")
    def handle(delivery: Delivery) -> None:
        raise Reject(f"no such order: {delivery.text()}")

    await sender.send("orders", "7", id="a")
    async with working(worker):
        found = await _garbage(sender, "a")
    assert (found.copies[0].failure.error, found.copies[0].failure.reason) == ("no such order: 7", "rejected")


ERRORS = [
    ValueError("boom"),
    SystemExit(1),
    KeyboardInterrupt(),
    asyncio.CancelledError(),
    StopIteration(),
    GeneratorExit(),
    BaseException("base"),
    BaseExceptionGroup("several", [KeyboardInterrupt()]),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
    RuntimeError("\udc80 no text of UTF-8, \0 and\nmany lines" * 1_000),
    Unspeakable(),
]


@pytest.mark.usefixtures("manager")
@KINDS
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_no_exception_of_a_handler_ends_the_worker(
    worker: Worker, sender: AsyncProducer, kind: str, error: BaseException
) -> None:
    """Whatever is raised, the message is retried, and the worker goes on with others (promise 12)."""
    handled = Handled()

    def handle(delivery: Delivery) -> None:
        handled.append(delivery)
        if delivery.attempt == 1:
            raise error

    worker.on("orders")(_as_kind(kind, handle))
    async with working(worker):
        await sender.send("orders", b"x", id="a")
        await wait_until_async(lambda: len(handled) == 2)
        await sender.send("orders", b"x", id="b")
        await wait_until_async(lambda: len(handled) == 4)
        await _drained(sender, "a", "b")
    assert Counter(handled.ids) == {"a": 2, "b": 2}


@pytest.mark.usefixtures("manager")
async def test_a_coroutine_may_have_a_timeout(worker: Worker, sender: AsyncProducer) -> None:
    """One that runs longer is cancelled, and its message given up with an error that says so."""
    ended = []

    @worker.on("orders", timeout=0.05)
    async def handle(delivery: Delivery) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(delivery)

    await sender.send("orders", b"x", id="a", max_retries=1)
    async with working(worker):
        found = await _garbage(sender, "a")
    assert len(ended) == 2
    assert found.copies[0].failure.error == "TimeoutError: the handler took longer than 0.05 s"


@KINDS
async def test_a_long_handler_keeps_its_lease(
    *, worker: Worker, sender: AsyncProducer, declare: Declare, client: redis.Redis, prefix: str, kind: str
) -> None:
    """A handler that takes longer than the visibility timeout is delivered once."""
    declare(visibility_ms=300)
    handled, ready = Handled(), ShardKeys(prefix, "orders").of("ready")
    async with _gate() as gate:

        async def coroutine(delivery: Delivery) -> None:
            handled.append(delivery)
            await gate.wait()

        def function(delivery: Delivery) -> None:
            handled.append(delivery)
            wait_until(gate.is_set)

        worker.on("orders")(coroutine if kind == "coroutine" else function)
        await sender.send("orders", b"x", id="a")
        async with working(worker):
            await wait_until_async(lambda: handled)
            await idle_async(0.9)
            # A manager would take it back, rightly, when this process stalls for a lease.
            await wait_until_async(lambda: lease_ages_ms(client, ready)[0] < 300, what="a renewal")
            gate.set()
            await _drained(sender, "a")
    assert handled.ids == ["a"]


async def test_what_waits_in_hand_keeps_its_lease(
    *,
    redis_url: str,
    prefix: str,
    sender: AsyncProducer,
    client: redis.Redis,
    manager: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Deliveries that were read ahead are not reclaimed while they wait behind a slow one."""
    monkeypatch.setattr(leases, "_RENEWALS", 30)  # of leases that outlast a stall of this process: one each second
    worker = new_worker(redis_url, prefix, concurrency=1, prefetch=10)
    ready = ShardKeys(prefix, "orders").of("ready")
    async with _gate() as gate:
        handled = hang(worker, "orders", gate)
        await sender.send_many("orders", [Message(body=b"x", id=f"m{n}") for n in range(3)])
        async with working(worker):
            await wait_until_async(lambda: handled and len(lease_ages_ms(client, ready)) > 1)
            await wait_until_async(lambda: max(lease_ages_ms(client, ready)) > 800)
            await wait_until_async(lambda: max(lease_ages_ms(client, ready)) < 800, what="their renewal")
            gate.set()
            await wait_until_async(lambda: len(handled) == 3)
            await _drained(sender, *handled.ids)
    assert [delivery.attempt for delivery in handled] == [1] * 3
    assert manager._reclaimer.reclaimed == 0


async def test_a_hanging_function_is_reclaimed_after_its_timeout(
    *,
    worker: Worker,
    sender: AsyncProducer,
    declare: Declare,
    client: redis.Redis,
    housekeeper: Housekeeper,
    prefix: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A thread cannot be cancelled: its lease is let go, and the message comes again. The log says so, once."""
    declare(visibility_ms=200)
    handled, ready = Handled(), ShardKeys(prefix, "orders").of("ready")
    async with _gate() as gate:

        @worker.on("orders", timeout=0.2)
        def handle(delivery: Delivery) -> None:
            handled.append(delivery)
            if delivery.attempt == 1:
                wait_until(gate.is_set)

        await sender.send("orders", b"x", id="a")
        async with working(worker):
            await wait_until_async(lambda: "still runs after its timeout" in caplog.text)
            await wait_until_async(lambda: lease_ages_ms(client, ready)[0] > 800, what="a lease that is not renewed")
            # By hand: a manager would take back the next attempt, too, when this process stalls for a lease.
            assert await housekeeper.reclaim("orders", "billing", after_s=30) == 1
            assert await housekeeper.promote("orders", after_s=60) == 1
            await wait_until_async(lambda: len(handled) == 2)
            await _drained(sender, "a")
            gate.set()
    assert caplog.text.count("still runs after its timeout") == 1
    assert [delivery.attempt for delivery in handled] == [1, 2]


@pytest.mark.usefixtures("manager")
async def test_a_handler_that_always_fails(
    worker: Worker, sender: AsyncProducer, declare: Declare, connection: AsyncConnection, prefix: str
) -> None:
    """Exactly max_retries + 1 deliveries with growing gaps, then garbage; a replay delivers it again (promise 7)."""
    declare(backoff_base_ms=50, backoff_jitter=0)
    handled, moments = Handled(), []

    @worker.on("orders")
    async def handle(delivery: Delivery) -> None:
        handled.append(delivery)
        moments.append(time.monotonic())
        if len(handled) <= 4:
            raise ValueError(f"boom {delivery.attempt}")

    await sender.send("orders", b"the body", id="a", max_retries=3)
    async with working(worker):
        found = await _garbage(sender, "a")
        assert [delivery.attempt for delivery in handled] == [1, 2, 3, 4]
        gaps = [later - earlier for earlier, later in pairwise(moments)]
        assert all(gap >= 0.05 * 2**n for n, gap in enumerate(gaps)), gaps
        assert (found.record.body, found.attempts) == (b"the body", 4)
        assert found.copies[0].failure.error == "ValueError: boom 4"
        replayed = await connection.call(managing.replay(ShardKeys(prefix, "orders"), ["billing/a"]))
        assert replayed == ["replayed"]
        await _drained(sender, "a")
    assert [(delivery.attempt, delivery.body) for delivery in handled[4:]] == [(1, b"the body")]


@pytest.mark.usefixtures("manager")
async def test_two_groups_each_get_every_message(
    redis_url: str, prefix: str, sender: AsyncProducer, client: redis.Redis
) -> None:
    """One group's failure is retried in that group alone, and nothing of any message is left behind."""
    handled = {"billing": Handled(), "mailing": Handled()}
    workers = {group: new_worker(redis_url, prefix, group) for group in handled}

    @workers["billing"].on("orders")
    async def bill(delivery: Delivery) -> None:
        handled["billing"].append(delivery)

    @workers["mailing"].on("orders")
    async def mail(delivery: Delivery) -> None:
        handled["mailing"].append(delivery)
        if delivery.attempt < 3:
            raise ValueError("no mail")

    ready = ShardKeys(prefix, "orders").of("ready")
    async with working(*workers.values()):
        await wait_until_async(lambda: client.exists(ready) and len(client.xinfo_groups(ready)) == 2)
        sent = await sender.send_many("orders", [Message(body=b"x", delay=n / 100) for n in range(20)])
        ids = sorted(result.id for result in sent.results)
        await wait_until_async(lambda: len(handled["mailing"]) == 60 and len(handled["billing"]) == 20)
        await wait_until_async(
            lambda: keys_left(client, prefix) == sorted([f"{prefix}:topics", f"{prefix}:workers", ready])
        )
    assert sorted(handled["billing"].ids) == ids
    assert Counter(handled["mailing"].ids) == dict.fromkeys(ids, 3)


def _generator(delivery: Delivery) -> Iterator[Delivery]:
    yield delivery


async def _async_generator(delivery: Delivery) -> AsyncIterator[Delivery]:
    yield delivery


class _Class:
    __call__ = _generator


_UNFIT: list[Any] = [None, "print", _Class, _Class(), _generator, partial(_generator), _async_generator]
"""What could not be called, or would be and handle nothing."""


def test_bad_registrations_are_refused(worker: Worker) -> None:
    """A topic has one handler, bounds are within the worker's, and names are names."""
    worker.on("orders")(print)
    for bad, field in [
        (lambda: worker.on("orders")(print), "topic"),
        (lambda: worker.on("a b")(print), "topic"),
        (worker.on, "topics"),
        (lambda: worker.on("x", concurrency=0), "concurrency"),
        (lambda: worker.on("x", concurrency=10_001), "concurrency"),
        (lambda: worker.on("x", timeout=0), "timeout"),
        *((lambda handler=handler: worker.on("x")(handler), "handler") for handler in _UNFIT),
        (lambda: Retry(delay=-1), "delay"),
        (lambda: Retry(60), "reason"),  # type: ignore[arg-type]
        (lambda: Reject(5), "reason"),  # type: ignore[arg-type]
    ]:
        with pytest.raises(InvalidInput) as caught:
            bad()
        assert caught.value.field == field


@pytest.mark.parametrize("handler", [_generator, _async_generator, partial(_generator), _Class()])
def test_the_error_of_a_generator_names_the_word(worker: Worker, handler: Any) -> None:
    """It is one word in a long function, and no type that people know of it."""
    with pytest.raises(InvalidInput, match=r"^handler must be a function without `yield`, of which a call"):
        worker.on("orders")(handler)


async def test_a_worker_needs_a_handler_and_concurrency_for_each_topic(redis_url: str, prefix: str) -> None:
    """A worker that could do nothing does not begin."""
    with pytest.raises(InvalidInput, match="handler"):
        await new_worker(redis_url, prefix).serve()
    crowded = new_worker(redis_url, prefix, concurrency=1)
    crowded.on("a", "b")(print)
    with pytest.raises(InvalidInput, match="concurrency"):
        await crowded.serve()
