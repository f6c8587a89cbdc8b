"""Hooks of the worker: middleware, start and stop, snoozes, batches, patterns of topics."""

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import redis

from lisa_common.errors import InvalidInput
from lisa_consumer import BatchFailed, ConsumerSettings, Delivery, Reject, Retry, Snooze, Worker
from lisa_manager import Admin
from lisa_producer import AsyncProducer, Message, Producer, State
from lisa_testing import Lisa
from support.running import new_worker
from support.server import reads_wait
from support.waiting import wait_until_async

_session: contextvars.ContextVar[str] = contextvars.ContextVar("session", default="none")


@pytest.fixture
def lisa_server(redis_url: str) -> str:
    """The test kit, on the server of this run."""
    return redis_url


def test_middleware_surrounds_handlers_of_both_kinds(lisa: Lisa) -> None:
    """The first is outermost; what it sets is seen by coroutines and in threads; it sees results and errors."""
    worker, events = Worker("g"), list[str]()

    @worker.use
    async def outer(delivery: Delivery, call_next: Callable[[Any], Awaitable[object]]) -> None:
        _session.set(f"of {delivery.id}")
        events.append("in")
        try:
            await call_next(delivery)
            events.append("out")
        except ValueError as error:
            events.append(f"raised {error}")
            raise

    @worker.use
    async def inner(delivery: Delivery, call_next: Callable[[Any], Awaitable[object]]) -> None:
        events.append("inner")
        await call_next(delivery._replace(headers={"user": "ann"}))

    @worker.on("coroutines")
    async def on_loop(delivery: Delivery) -> None:
        events.append(f"{delivery.headers['user']}, session {_session.get()}")

    @worker.on("threads")
    def in_thread(delivery: Delivery) -> None:
        events.append(f"{threading.current_thread().name[:4]}, session {_session.get()}")
        raise ValueError(delivery.id)

    lisa.attach(worker)
    lisa.send("coroutines", 1, id="a")
    lisa.drain(worker)
    assert events == ["in", "inner", "ann, session of a", "out"]
    events.clear()
    # A retry would be due in a second, which a busy machine takes for a drain.
    lisa.admin.create_topic("threads", max_retries=0)
    lisa.send("threads", 1, id="b")
    assert len(lisa.drain(worker).failed) == 1
    assert events == ["in", "inner", "lisa, session of b", "raised b"]


def test_plain_middleware_runs_in_the_thread_of_its_handler(lisa: Lisa) -> None:
    """As a database session of a thread needs it. Around a coroutine it is refused before anything is read."""
    worker, threads = Worker("g"), list[str]()

    @worker.use
    def session(delivery: Delivery, call_next: Callable[[Any], object]) -> None:
        threads.append(threading.current_thread().name)
        call_next(delivery)

    worker.on("orders")(lambda _: threads.append(threading.current_thread().name))
    lisa.attach(worker)
    lisa.send("orders", 1)
    lisa.drain(worker)
    assert threads[0] == threads[1] != threading.current_thread().name

    @worker.on("other")
    async def other(_: Delivery) -> None: ...

    with pytest.raises(InvalidInput, match="must be a coroutine function, like the handler of topic 'other'"):
        lisa.drain(worker)


def test_middleware_decides_as_a_handler_does(lisa: Lisa) -> None:
    """It may end an error, or turn it into a rejection; the timeout covers it."""
    worker = Worker("g")

    @worker.use
    async def decide(delivery: Delivery, call_next: Callable[[Any], Awaitable[object]]) -> None:
        try:
            await call_next(delivery)
        except KeyError:
            return
        except ValueError as error:
            raise Reject("of no use") from error

    @worker.on("orders", timeout=0.05)
    async def handle(delivery: Delivery) -> None:
        match delivery.id:
            case "known":
                raise KeyError
            case "bad":
                raise ValueError
            case _:
                await asyncio.Event().wait()

    lisa.attach(worker)
    for id in ("known", "bad", "slow"):
        lisa.send("orders", 1, id=id)
    assert [delivery.id for delivery in lisa.drain(worker).handled] == ["known"]
    states = [found.state for id in ("known", "bad", "slow") if (found := lisa.find("orders", id))]
    assert states == [State.FINISHED, State.GARBAGE, State.RETRY]


def test_start_and_stop(lisa: Lisa) -> None:
    """In order, and in reverse; what was started is stopped even if the rest failed."""
    worker, events = Worker("g"), list[str]()
    worker.on("orders")(lambda _: events.append("handled"))

    @worker.on_start
    async def connect() -> None:
        events.append("connect")

    @worker.on_start
    def warm_up() -> None:
        events.append("warm up")

    worker.on_stop(lambda: events.append("close"))

    @worker.on_stop
    async def flush() -> None:
        events.append("flush")

    lisa.attach(worker)
    lisa.send("orders", 1)
    lisa.drain(worker)
    assert events == ["connect", "warm up", "handled", "flush", "close"]

    @worker.on_start
    def fail() -> None:
        raise OSError("no database")

    events.clear()
    with pytest.raises(OSError, match="no database"):
        lisa.drain(worker)
    assert events == ["connect", "warm up", "flush", "close"]


def test_a_snooze_spends_no_attempt(lisa: Lisa) -> None:
    """However often: the only attempt is still there, and the state says why it waits."""
    worker, attempts = Worker("g"), list[tuple[int, bool]]()

    @worker.on("orders")
    async def handle(delivery: Delivery) -> None:
        attempts.append((delivery.attempt, delivery.is_last_attempt))
        if len(attempts) < 4:
            raise Snooze(60, "the bank is closed")

    lisa.attach(worker)
    lisa.send("orders", 1, id="a", max_retries=0)
    lisa.drain(worker)
    for _ in range(3):
        found = lisa.find("orders", "a")
        assert found
        assert (found.state, found.attempts) == (State.RETRY, 0)
        assert found.copies[0].failure
        assert (found.copies[0].failure.reason, found.copies[0].failure.error) == ("snoozed", "the bank is closed")
        lisa.advance(seconds=59)
        assert len(lisa.drain(worker)) == 0
        lisa.advance(seconds=1)
        lisa.drain(worker)
    assert attempts == [(1, True)] * 4
    assert lisa.admin.check().is_clean
    assert lisa.garbage("orders") == []


def test_a_snoozed_message_still_expires(lisa: Lisa) -> None:
    """Snoozing for ever does not outlive a time to live."""
    worker = Worker("g")

    @worker.on("orders")
    async def handle(_: Delivery) -> None:
        raise Snooze(60)

    lisa.attach(worker)
    lisa.send("orders", 1, id="a", ttl=100)
    for _ in range(3):
        lisa.drain(worker)
        lisa.advance(seconds=60)
    assert [letter.reason for letter in lisa.garbage("orders")] == ["expired"]


def test_attempts_are_known_to_the_handler(lisa: Lisa) -> None:
    """The message's own number of retries, else the topic's."""
    worker, got = Worker("g"), dict[str, tuple[int | None, bool]]()

    @worker.on("orders")
    async def handle(delivery: Delivery) -> None:
        got[delivery.id] = delivery.max_retries, delivery.is_last_attempt

    lisa.set_policy("orders", max_retries=3)
    lisa.attach(worker)
    lisa.send("orders", 1, id="topic")
    lisa.send("orders", 1, id="own", max_retries=0)
    lisa.drain(worker)
    assert got == {"topic": (3, False), "own": (0, True)}


@pytest.mark.parametrize("is_async", [True, False])
def test_batches(lisa: Lisa, *, is_async: bool) -> None:
    """Up to so many at once, whatever the concurrency of the worker; all are acked."""
    worker, sizes = Worker("g", concurrency=2), list[int]()

    def take(deliveries: list[Delivery]) -> None:
        assert all(isinstance(delivery, Delivery) for delivery in deliveries)
        sizes.append(len(deliveries))

    async def take_async(deliveries: list[Delivery]) -> None:
        take(deliveries)

    worker.on("orders", batch=100, within=5)(take_async if is_async else take)
    lisa.attach(worker)
    lisa.producer.send_many("orders", [Message(body=n) for n in range(250)])
    lisa.drain(worker)
    assert sum(sizes) == 250
    assert max(sizes) == 100
    assert lisa.admin.sizes("orders")[0].messages == 0


async def test_a_batch_waits_within_its_time(lisa: Lisa) -> None:
    """What comes within the time joins; then the handler gets what there is."""
    worker, batches, got = Worker("g"), list[list[int]](), asyncio.Event()

    @worker.on("orders", batch=10, within=0.3)
    async def take(deliveries: list[Delivery]) -> None:
        batches.append([delivery.json() for delivery in deliveries])
        got.set()

    lisa.attach(worker)
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        tasks.create_task(worker.serve())
        for number in range(3):
            await asyncio.to_thread(lisa.send, "orders", number)
        await got.wait()
        worker.stop()
    # The worker may have read one as it started, and given it back: that comes again, behind the others.
    assert [sorted(batch) for batch in batches] == [[0, 1, 2]]


def test_a_batch_fails_as_a_whole_or_in_part(lisa: Lisa, caplog: pytest.LogCaptureFixture) -> None:
    """An error nacks all, with one traceback; BatchFailed says for each what follows."""
    worker, errors = Worker("g"), list[Exception]()

    @worker.on("orders", batch=10)
    async def take(deliveries: list[Delivery]) -> None:
        if errors:
            raise errors.pop()
        outcomes = {"reject": Reject("never"), "retry": Retry("soon", delay=60), "snooze": Snooze(60)}
        raise BatchFailed([(d, outcomes[d.id]) for d in deliveries if d.id in outcomes])

    lisa.attach(worker)
    errors.append(ConnectionError("no bank"))
    lisa.set_policy("orders", backoff_base_ms=1_000, backoff_jitter=0)
    lisa.producer.send_many("orders", [Message(body=1, id=id) for id in ("fine", "reject", "retry", "snooze")])
    assert len(lisa.drain(worker).failed) == 4
    assert caplog.text.count("Traceback") == 1
    found = lisa.find("orders", "fine")
    assert found
    assert found.copies[0].failure
    assert found.copies[0].failure.error == "ConnectionError: no bank"
    lisa.advance(seconds=1)
    drained = lisa.drain(worker)
    assert ([d.id for d in drained.handled], len(drained.failed)) == (["fine"], 3)
    states = {id: f.state.value for id in ("fine", "reject", "retry", "snooze") if (f := lisa.find("orders", id))}
    assert states == {"fine": "finished", "reject": "garbage", "retry": "retry", "snooze": "retry"}
    found = lisa.find("orders", "snooze")
    assert found
    assert found.attempts == 1
    assert lisa.admin.check().is_clean


@pytest.mark.parametrize("taken", [0, 2], ids=["empties", "takes one"])
def test_a_handler_may_change_the_list_of_its_batch(lisa: Lisa, *, taken: int) -> None:
    """When it fails after that, all messages of its batch are nacked: none is acked, none stays with the worker."""
    worker = Worker("g")

    @worker.on("orders", batch=3)
    async def take(deliveries: list[Delivery]) -> None:
        del deliveries[taken:]
        raise ConnectionError("no bank")

    lisa.attach(worker)
    lisa.producer.send_many("orders", [Message(body=1, id=id) for id in "abc"])
    lisa.drain(worker)
    found = [lisa.find("orders", id) for id in "abc"]
    assert [each.state.value for each in found if each] == ["retry"] * 3


class Problems(Exception):
    """Holds problems, and is false, as it holds none."""

    def __len__(self) -> int:
        return 0


@pytest.mark.parametrize("as_whole", [True, False], ids=["whole", "part"])
def test_a_batch_fails_by_an_error_that_is_false(lisa: Lisa, *, as_whole: bool) -> None:
    """It is an error like any other: its messages are not acked."""
    worker = Worker("g")

    @worker.on("orders", batch=10)
    async def take(deliveries: list[Delivery]) -> None:
        raise Problems if as_whole else BatchFailed([(each, Problems()) for each in deliveries])

    lisa.attach(worker)
    lisa.producer.send_many("orders", [Message(body=1, id=id) for id in ("first", "second")])
    lisa.drain(worker)
    found = [lisa.find("orders", id) for id in ("first", "second")]
    assert [each.state.value for each in found if each] == ["retry", "retry"]


async def test_a_stop_does_not_wait_for_a_batch_to_fill(lisa: Lisa, client: redis.Redis) -> None:
    """What has gathered is handled at once when the worker stops."""
    worker, gathered, batches = Worker("g"), asyncio.Event(), list[int]()

    @worker.on("orders", batch=10, within=60)
    async def take(deliveries: list[Delivery]) -> None:
        batches.append(len(deliveries))

    @worker.on("signal")
    async def note(_: Delivery) -> None:
        gathered.set()

    lisa.attach(worker)
    await asyncio.to_thread(lisa.producer.send_many, "orders", [Message(body=n) for n in range(3)])
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        tasks.create_task(worker.serve())
        await asyncio.to_thread(lisa.send, "signal", 1)
        await gathered.wait()
        await wait_until_async(lambda: lisa.admin.sizes("orders")[0].delivered == 3, what="all are read")
        await wait_until_async(lambda: reads_wait(client), what="the next read, so the worker has the answer")
        worker.stop()
    # What had been read and not yet begun may have come later.
    assert (sum(batches), len(batches) <= 2) == (3, True)


async def test_a_batch_that_gathers_behind_another_is_handled_as_the_worker_stops(lisa: Lisa) -> None:
    """It begins as the other ends, though it is not full."""
    worker, begun, later, go_on = Worker("g"), asyncio.Event(), asyncio.Event(), asyncio.Event()
    batches: list[list[int]] = []

    @worker.on("orders", batch=2, within=60)
    async def take(deliveries: list[Delivery]) -> None:
        batches.append(sorted(delivery.json() for delivery in deliveries))
        begun.set()
        await go_on.wait()

    @worker.on("signal")
    async def note(_: Delivery) -> None:
        later.set()

    lisa.attach(worker)
    await asyncio.to_thread(lisa.producer.send_many, "orders", [Message(body=n) for n in range(3)])
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        tasks.create_task(worker.serve())
        await begun.wait()
        await wait_until_async(lambda: lisa.admin.sizes("orders")[0].delivered == 3, what="all are read")
        await asyncio.to_thread(lisa.send, "signal", 1)
        await later.wait()  # a later read has been answered
        worker.stop()
        go_on.set()
    assert [len(batch) for batch in batches] == [2, 1]
    assert lisa.admin.sizes("orders")[0].stored == 0


async def test_a_batch_that_gathers_is_given_back_as_its_worker_is_cancelled(lisa: Lisa, client: redis.Redis) -> None:
    """Its messages count as begun, but spend no attempt, as their handler never was called."""
    worker, called = Worker("g"), list[int]()

    @worker.on("orders", batch=10, within=60)
    async def take(deliveries: list[Delivery]) -> None:
        called.append(len(deliveries))

    lisa.attach(worker)
    await asyncio.to_thread(lisa.send, "orders", 1, id="a")
    serving = asyncio.create_task(worker.serve())
    await wait_until_async(lambda: lisa.admin.sizes("orders")[0].delivered == 1, what="it is read")
    await wait_until_async(lambda: reads_wait(client), what="the next read, so the worker has the answer")
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    found = lisa.admin.find("orders", "a")
    assert found
    assert (called, found.state, found.attempts) == ([], "ready", 0)


async def test_what_cannot_be_decoded_ends_apart_from_its_batch(lisa: Lisa) -> None:
    """It is rejected; the others are handled together, with their values."""
    worker, batches = Worker("g"), list[list[int]]()

    @worker.on("orders", batch=10, within=0.1, body=int)
    async def take(deliveries: list[Delivery]) -> None:
        batches.append(sorted(delivery.value for delivery in deliveries))

    lisa.attach(worker)
    await asyncio.to_thread(lisa.producer.send_many, "orders", [Message(body=body) for body in (1, "x", 2)])
    await asyncio.to_thread(lisa.drain, worker)
    assert sorted(value for batch in batches for value in batch) == [1, 2]
    assert (lisa.admin.sizes("orders")[0].garbage, lisa.admin.sizes("orders")[0].stored) == (1, 1)


@pytest.mark.slow
async def test_topics_are_found_by_pattern_while_the_worker_works(
    lisa: Lisa, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Before it starts and later; a name wins over a pattern; a dropped topic goes, and comes again."""
    monkeypatch.setattr("lisa_consumer.worker.discovery._PAUSE_S", 0.05)
    caplog.set_level("INFO", "lisa_consumer")
    worker, got = Worker("g", concurrency=2), asyncio.Queue[str]()

    @worker.on("orders.*")
    async def any_of(delivery: Delivery) -> None:
        got.put_nowait(f"pattern {delivery.topic}")

    @worker.on("orders.eu")
    async def eu(delivery: Delivery) -> None:
        got.put_nowait(f"name {delivery.topic}")

    lisa.attach(worker)
    admin: Admin = lisa.admin
    send: Any = asyncio.to_thread
    await send(lisa.send, "orders.us", 1)
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        tasks.create_task(worker.serve())
        assert await got.get() == "pattern orders.us"
        await send(lisa.send, "orders.eu", 1)
        assert await got.get() == "name orders.eu"
        for number in range(5):
            await send(lisa.send, f"orders.{number}", 1)
        assert sorted([await got.get() for _ in range(5)]) == [f"pattern orders.{number}" for number in range(5)]
        await asyncio.to_thread(admin.drop_topic, "orders.us", force=True)
        await wait_until_async(lambda: "topic orders.us was dropped" in caplog.text)
        with Producer() as fresh:
            await asyncio.to_thread(fresh.send, "orders.us", 2)
        assert await got.get() == "pattern orders.us"
        await send(lisa.send, "other", 1)
        worker.stop()
    assert got.empty()


def test_a_worker_of_patterns_alone_may_find_nothing(lisa: Lisa) -> None:
    """It waits; a drain ends."""
    worker = Worker("g")
    worker.on("orders.*")(print)
    assert len(lisa.drain(worker)) == 0


_BAD: dict[str, tuple[Callable[[Worker], object], str]] = {
    "no batch": (lambda w: w.on("x", batch=0), "batch"),
    "large batch": (lambda w: w.on("x", batch=1_001), "batch"),
    "within": (lambda w: w.on("x", batch=2, within=-1), "within"),
    "within alone": (lambda w: w.on("x", within=5), "within"),  # type: ignore[call-overload]
    "pattern": (lambda w: w.on("a b.*"), "topic"),
    "twice": (lambda w: [w.on("a.*")(print) for _ in range(2)], "topic"),
    "middleware of one argument": (lambda w: w.use(lambda _: None), "middleware"),  # type: ignore[arg-type, misc]
    "no middleware": (lambda w: w.use(None), "middleware"),  # type: ignore[type-var]
    "a name": (lambda _: Worker("g", middleware=["x"]), "middleware"),  # type: ignore[list-item]
    "a function": (lambda _: Worker("g", middleware=print), "middleware"),  # type: ignore[arg-type]
    "a dictionary": (lambda w: w.on("x", body={"a": int}), "body"),
    "every without a period": (lambda w: w.every(print), "period"),
    "cron without an expression": (lambda w: w.cron(print), "expression"),
    "start": (lambda w: w.on_start(lambda _: None), "on_start"),  # type: ignore[arg-type, misc]
    "stop": (lambda w: w.on_stop("x"), "on_stop"),  # type: ignore[type-var]
    "snooze": (lambda _: Snooze(-1), "delay"),
    "failed": (lambda _: BatchFailed([("a", "b")]), "failed"),  # type: ignore[list-item]
    "no list": (lambda _: BatchFailed(3), "failed"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize(("bad", "field"), _BAD.values(), ids=_BAD)
def test_bad_hooks_are_refused(bad: Callable[[Worker], object], field: str) -> None:
    """At once, with one clear error."""
    with pytest.raises(InvalidInput) as caught:
        bad(Worker("g"))
    assert caught.value.field == field


@pytest.mark.parametrize("topics", [("a", "taken"), ("a", "a"), ("a", "b.*", "taken.*"), ("a", "c", "b d")])
def test_a_handler_is_registered_for_all_topics_or_none(topics: tuple[str, ...]) -> None:
    """So that a program which catches the error may try again."""
    worker = Worker("g")
    worker.on("taken", "taken.*")(print)
    with pytest.raises(InvalidInput):
        worker.on(*topics)(print)
    assert worker.topics == ["taken"]
    worker.on("a", "b.*")(print)
    assert worker.topics == ["taken", "a"]


def test_arguments_win_over_settings() -> None:
    """Those that are given with settings of the caller's own; they are checked as ever."""
    settings = ConsumerSettings(concurrency=5, prefetch=6)
    worker = Worker("g", concurrency=3, settings=settings)
    assert (worker.settings.concurrency, worker.settings.prefetch, settings.concurrency) == (3, 6, 5)
    with pytest.raises(InvalidInput, match="concurrency"):
        Worker("g", concurrency=0, settings=settings)
    with pytest.raises(InvalidInput, match="prefetch"):
        Worker("g", prefetch=-1, settings=settings)


@pytest.mark.parametrize("pauses", [False, True])
@pytest.mark.parametrize("batch", [None, 2])
async def test_a_handler_does_not_see_context_variables_of_others(
    redis_url: str, prefix: str, sender: AsyncProducer, *, pauses: bool, batch: int | None
) -> None:
    """Whether they end together or apart: what a handler sets ends with it."""
    worker, seen = new_worker(redis_url, prefix, concurrency=2), list[str]()

    async def handle(_: object) -> None:
        seen.append(_session.get())
        _session.set(f"of handler {len(seen)}")
        if pauses and len(seen) % 2:
            await asyncio.sleep(0.001)

    worker.on("orders", **({"batch": batch} if batch else {}))(handle)
    await sender.send_many("orders", [Message(body=b"x") for _ in range(40)])
    token = _session.set("of the worker")
    await worker.serve(burst=True)
    _session.reset(token)
    assert seen == ["of the worker"] * (20 if batch else 40)
