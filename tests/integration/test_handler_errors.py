"""What exceptions of handlers mean when they come in groups, and what is kept of them."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from lisa_common.model.policy import Policy
from lisa_consumer import (
    AsyncConsumer,
    BatchFailed,
    ConsumerSettings,
    Delivery,
    RateLimited,
    Reject,
    Retry,
    Snooze,
    Worker,
)
from lisa_producer import AsyncProducer, Found, Message, State
from support.commands import Commands
from support.running import new_worker

SECRET = "hunter" + "2"


@pytest.fixture
def worker(redis_url: str, prefix: str) -> Worker:
    """A worker that does not run yet."""
    return new_worker(redis_url, prefix)


async def _raise(error: BaseException) -> None:
    raise error


async def _handled(
    worker: Worker, sender: AsyncProducer, handle: Callable[[Delivery], Coroutine[Any, Any, None]]
) -> Found:
    """A message after the one call of a handler."""
    worker.on("orders")(handle)
    await sender.send("orders", b"x", id="a")
    await worker.serve(burst=True)
    found = await sender.find("orders", "a")
    assert found
    return found


async def _of_group(worker: Worker, sender: AsyncProducer, error: BaseException) -> tuple[State, int, str, int]:
    """State, attempts, error and delay in s of a message whose handler raises an exception."""
    found = await _handled(worker, sender, lambda _: _raise(error))
    [copy] = found.copies
    failure = copy.failure
    assert failure
    return found.state, found.attempts, failure.error, round((copy.at_ms - failure.at_ms) / 1000)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(
    ("wish", "state", "attempts", "error"),
    [
        (Reject("no such customer"), State.GARBAGE, 1, "no such customer"),
        (Snooze(3_600, "closed"), State.RETRY, 0, "closed"),
        (Retry("busy", delay=3_600), State.RETRY, 1, "busy"),
        (ValueError("no"), State.RETRY, 1, "ValueError: no"),
    ],
)
async def test_what_a_task_group_raises_is_unwrapped(
    *, worker: Worker, sender: AsyncProducer, depth: int, wish: Exception, state: State, attempts: int, error: str
) -> None:
    """A wish counts as such, in a group within a group too; and a failure is stored with its own text."""

    async def handle(_: Delivery) -> None:
        async with asyncio.TaskGroup() as outer:
            if depth == 1:
                outer.create_task(_raise(wish))
            else:
                outer.create_task(nested())

    async def nested() -> None:
        async with asyncio.TaskGroup() as inner:
            inner.create_task(_raise(wish))

    found = await _handled(worker, sender, handle)
    [copy] = found.copies
    assert copy.failure
    assert (found.state, found.attempts, copy.failure.error) == (state, attempts, error)


async def test_a_limited_task_group_shuts_the_door(worker: Worker, sender: AsyncProducer) -> None:
    """The message is given back and waits, as if its handler had raised `RateLimited` itself."""
    found = await _handled(worker, sender, lambda _: _raise(ExceptionGroup("", [RateLimited(3_600)])))
    assert (found.state, found.attempts) == (State.RETRY, 0)


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ([Snooze(10), Snooze(3_600, "closed"), Snooze(20)], (State.RETRY, 0, "closed", 3_600)),
        ([Retry(delay=10), Snooze(3_600, "closed")], (State.RETRY, 0, "closed", 3_600)),
        ([Snooze(10), Reject("bad")], (State.GARBAGE, 1, "bad", 0)),
        ([ValueError("no"), Reject("bad")], (State.GARBAGE, 1, "ValueError: no | Reject: bad", 0)),
        ([Retry("busy", delay=60), ValueError("no")], (State.RETRY, 1, "Retry: busy | ValueError: no", 60)),
        ([Snooze(60, "closed"), ValueError("no")], (State.RETRY, 1, "Snooze: closed | ValueError: no", 7)),
        ([RateLimited(60, "429"), ValueError("no")], (State.RETRY, 1, "RateLimited: 429 | ValueError: no", 7)),
        ([ValueError("no"), KeyError("x")], (State.RETRY, 1, "ValueError: no | KeyError: 'x'", 7)),
    ],
)
async def test_the_strongest_of_a_group_decides(
    *,
    worker: Worker,
    sender: AsyncProducer,
    declare: Callable[..., Policy],
    members: list[Exception],
    expected: tuple[State, int, str, int],
) -> None:
    """Rejections first; beside an error, what spends no attempt does not count, or the error would come for ever."""
    declare(backoff="fixed", backoff_base_ms=7_000, backoff_jitter=0)
    assert await _of_group(worker, sender, ExceptionGroup("several", members)) == expected


class _Odd(Snooze):
    def __init__(self) -> None:
        self.delay_ms = "soon"  # type: ignore[assignment]


async def test_a_group_may_hold_wishes_that_cannot_be_read(worker: Worker, sender: AsyncProducer) -> None:
    """They are failures, and the worker goes on."""
    state, attempts, *_ = await _of_group(worker, sender, ExceptionGroup("", [_Odd(), _Odd()]))
    assert (state, attempts) == (State.RETRY, 1)


async def test_a_batch_may_fail_within_a_task_group(worker: Worker, sender: AsyncProducer) -> None:
    """`BatchFailed` says which messages failed, and each of their errors may be a group."""

    @worker.on("orders", batch=2, within=60)
    async def handle(deliveries: list[Delivery]) -> None:
        bad = next(delivery for delivery in deliveries if delivery.id == "bad")
        async with asyncio.TaskGroup() as group:
            group.create_task(_raise(BatchFailed([(bad, ExceptionGroup("", [Reject("bad")]))])))

    await sender.send_many("orders", [Message(body=b"x", id=id) for id in ("good", "bad")])
    await worker.serve(burst=True)
    states = [found.state for id in ("good", "bad") if (found := await sender.find("orders", id))]
    assert states == [State.FINISHED, State.GARBAGE]


def _pay(password: str) -> None:
    if password:
        raise ConnectionError("refused")


async def test_a_failure_names_its_causes_and_keeps_the_last_frames(
    worker: Worker, sender: AsyncProducer, commands: Commands
) -> None:
    """Of the handler's own code, the innermost last; with no value of a variable."""

    def pay() -> None:
        try:
            _pay(SECRET)
        except ConnectionError as error:
            raise RuntimeError("cannot pay") from ExceptionGroup("", [error])

    @worker.on("orders")
    def handle(_: Delivery) -> None:
        pay()

    await sender.send("orders", b"x", id="a", max_retries=0)
    await worker.serve(burst=True)
    found = await sender.find("orders", "a")
    assert found
    failure = found.copies[0].failure
    assert failure
    assert failure.error == "RuntimeError: cannot pay; caused by ConnectionError: refused"
    assert [frame.rsplit(".", 1)[-1] for frame in failure.trace] == ["handle", "pay"]
    assert all(frame.startswith(f"{__file__}:") for frame in failure.trace)
    out = (await asyncio.to_thread(commands.manager, "show", "orders", "a")).out
    assert f"traceback of billing:\n  {failure.trace[0]}\n  {failure.trace[1]}\n" in out
    shown = (await asyncio.to_thread(commands.manager, "show", "orders", "a", "--json")).document
    assert shown["copies"][0]["trace"] == list(failure.trace)
    listed = (await asyncio.to_thread(commands.manager, "garbage", "list", "orders", "--json")).document
    assert listed[0]["error"] == failure.error
    assert SECRET not in repr(found) + out


async def test_what_is_kept_of_a_failure_is_bounded(worker: Worker, sender: AsyncProducer) -> None:
    """However long its text, deep its traceback, and many its causes, even in a circle."""

    def descend(depth: int) -> None:
        if depth:
            descend(depth - 1)
        else:
            first, second = ValueError("x" * 10_000), KeyError("y")
            first.__cause__, second.__cause__ = second, first
            raise first

    async def handle(_: Delivery) -> None:
        descend(200)

    failure = (await _handled(worker, sender, handle)).copies[0].failure
    assert failure
    assert len(failure.error) == 2_000
    assert len(failure.trace) == 5
    assert sum(map(len, failure.trace)) <= 1_000


async def test_a_plain_consumer_keeps_them_too(redis_url: str, prefix: str, sender: AsyncProducer) -> None:
    """Where it nacks with an exception."""
    await sender.send("orders", b"x", id="a")
    settings = ConsumerSettings(redis_url=redis_url, prefix=prefix)
    async with AsyncConsumer("orders", "billing", settings=settings) as consumer:
        [delivery] = await consumer.read(wait=30)
        try:
            _pay(SECRET)
        except ConnectionError as error:
            await consumer.nack(delivery, error=ExceptionGroup("", [error]))
    found = await sender.find("orders", "a")
    assert found
    failure = found.copies[0].failure
    assert failure
    assert failure.error == "ConnectionError: refused"
    assert [frame.rsplit(" ", 1)[-1] for frame in failure.trace] == [
        "test_a_plain_consumer_keeps_them_too",
        "_pay",
    ]
