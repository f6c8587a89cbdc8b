"""Calls of handlers that share a task cannot tell."""

import asyncio
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from contextvars import ContextVar
from types import coroutine
from typing import Any

import pytest

from lisa_common.model.delivery import Delivery, Entry
from lisa_consumer.handler_tasks import HandlerTasks
from lisa_consumer.worker.held import HeldDelivery
from lisa_consumer.names import HANDLER
from support.waiting import wait_until_async

seen: ContextVar[object] = ContextVar("seen", default=None)

Handler = Callable[[int], Awaitable[object]]


def held(number: int) -> HeldDelivery:
    """A delivery with this number as its id."""
    return HeldDelivery(Delivery("orders", "billing", str(number), b"", {}, 1, 0, 0, Entry(f"1-{number}")), 0.0)


class Calls:
    """Calls of one handler, each with its number."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self.ended: list[int] = []
        self.errors: list[Exception] = []
        self.on_ended: Callable[[], None] = lambda: None
        self.tasks = HandlerTasks(self._note)

    def _note(self, ended: list[HeldDelivery]) -> None:
        self.ended += [int(each.delivery.id) for each in ended]
        self.on_ended()

    def start(self, *numbers: int) -> None:
        """Starts calls with these numbers."""
        for number in numbers:
            self.tasks.start([each := held(number)], self._call(number, each))

    async def _call(self, number: int, each: HeldDelivery) -> None:
        try:
            with suppress(asyncio.CancelledError):
                await self._handler(number)
        except Exception as error:  # noqa: BLE001 - `wait_for` raises it
            self.errors.append(error)
        finally:
            self.tasks.end([each])

    async def run(self, count: int) -> None:
        """Runs so many calls, which begin together."""
        self.start(*range(count))
        await self.wait_for(count)

    async def wait_for(self, count: int) -> None:
        """Waits until so many calls have ended; raises AssertionError if one has raised an error."""
        await wait_until_async(lambda: len(self.ended) == count and not self.tasks.unfinished)
        assert not self.errors


async def test_calls_that_do_not_wait_share_a_task() -> None:
    """What makes a quick handler cheap."""
    used = set[int]()

    async def handler(_: int) -> None:
        used.add(id(current()))

    await Calls(handler).run(4)
    assert len(used) == 1


async def test_calls_that_wait_all_begin() -> None:
    """Each waits for all others."""
    together = asyncio.Barrier(8)

    async def handler(_: int) -> None:
        await together.wait()

    calls = Calls(handler)
    await calls.run(8)
    assert sorted(calls.ended) == list(range(8))


async def test_no_call_sees_context_variables_of_another() -> None:
    """Neither of one that has ended nor of one that waits, nor a value that is only equal."""
    met = []

    async def handler(number: int) -> None:
        met.append(seen.get())
        seen.set(number)
        if number % 3 == 0:
            await asyncio.sleep(0)
            assert seen.get() == number

    await Calls(handler).run(9)
    assert met == [None] * 9
    seen.set(first := ["the same"])
    met.clear()

    async def equal(_: int) -> None:
        met.append(seen.get())
        seen.set(["the same"])

    await Calls(equal).run(4)
    assert all(each is first for each in met), "one saw a value that another had set, which was only equal"


@pytest.mark.parametrize("then", ["keeps it", "takes it back"])
async def test_a_cancellation_of_its_own_task_reaches_no_other_call(then: str) -> None:
    """It would come at the next wait of the task: before Python 3.13 also after `Task.uncancel`."""
    reached = []

    async def handler(number: int) -> None:
        if number == 0:
            current().cancel()
            if then == "takes it back":
                current().uncancel()
            return
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            reached.append(number)

    await Calls(handler).run(4)
    assert reached == []


def current() -> "asyncio.Task[Any]":
    """The task that runs."""
    task = asyncio.current_task()
    assert task
    return task


async def test_a_late_cancellation_of_its_task_reaches_no_other_call() -> None:
    """As from a limit of time that a handler forgot to end."""
    late = asyncio.Event()
    reached = []

    async def handler(number: int) -> None:
        if number == 0:
            asyncio.get_running_loop().call_later(0.01, cancel, current())
            return
        try:
            await late.wait()
        except asyncio.CancelledError:
            reached.append(number)

    def cancel(task: "asyncio.Task[Any]") -> None:
        task.cancel()
        late.set()

    await Calls(handler).run(4)
    assert reached == []


async def test_a_callback_at_the_end_of_its_task_comes_before_another_call_needs_it() -> None:
    """As of a lock that is released when the task ends."""
    lock = asyncio.Semaphore(1)
    begun = []

    async def handler(number: int) -> None:
        await lock.acquire()
        begun.append(number)
        current().add_done_callback(lambda _: lock.release())

    await Calls(handler).run(4)
    assert begun == [0, 1, 2, 3]


@pytest.mark.parametrize("gives", ["attribute", "name"])
async def test_no_call_sees_an_attribute_or_a_name_that_another_gave_its_task(gives: str) -> None:
    """Some libraries keep what belongs to a task there."""
    met = []

    async def handler(number: int) -> None:
        task: Any = current()
        met.append((getattr(task, "tenant", None), task.get_name()))
        if gives == "attribute":
            task.tenant = number
        else:
            task.set_name(str(number))

    await Calls(handler).run(4)
    assert met == [(None, HANDLER)] * 4


@pytest.mark.parametrize("by", ["a task factory", "an event loop of another kind"])
async def test_another_creator_of_tasks_creates_one_for_each_call(by: str) -> None:
    """What is kept for a task, such as a span, is of one call then."""
    created = []
    loop: Any = asyncio.get_running_loop()

    def create(coro: Coroutine[Any, Any, Any], **options: Any) -> "asyncio.Task[Any]":
        created.append(task := asyncio.Task(coro, loop=loop, **options))
        return task

    async def handler(_: int) -> None:
        assert current() in created
        created.remove(current())

    if by == "a task factory":
        loop.set_task_factory(lambda _, coro, **options: create(coro, **options))
    else:
        loop.create_task = create
    await Calls(handler).run(4)


@pytest.mark.parametrize("keeping", ["strong", "weak"])
async def test_a_call_that_keeps_its_task_shares_it_with_no_later_one(keeping: str) -> None:
    """Sessions and scopes are often kept by task."""
    sessions: Any = {} if keeping == "strong" else weakref.WeakKeyDictionary()
    met = []

    async def handler(number: int) -> None:
        met.append(sessions.setdefault(current(), number) == number)

    await Calls(handler).run(4)
    assert met == [True] * 4


async def test_calls_that_a_handler_cancels_before_they_begin_still_begin() -> None:
    """As a supervisor would that cancels all tasks but its own."""
    begun = []

    async def handler(number: int) -> None:
        begun.append(number)
        if number == 0:
            await asyncio.sleep(0)
            calls.start(1, 2, 3)
            for task in asyncio.all_tasks() - {current(), main}:
                task.cancel()

    main = current()
    calls = Calls(handler)
    calls.start(0)
    await calls.wait_for(4)
    assert begun == [0, 1, 2, 3]
    assert len(calls.tasks) == 0


async def test_a_cancelled_call_that_waits_does_not_take_others_along() -> None:
    """The others have begun beside it."""
    begun = []

    async def handler(number: int) -> None:
        begun.append(number)
        if number == 0:
            await asyncio.Event().wait()

    calls = Calls(handler)
    calls.start(0, 1, 2)
    await wait_until_async(lambda: sorted(begun) == [0, 1, 2])
    assert calls.ended == [1, 2]
    [task] = calls.tasks.unfinished
    task.cancel()
    await calls.wait_for(3)


async def test_others_join_only_for_a_moment() -> None:
    """What else runs in the event loop does not wait for as long as there is something to handle."""
    turns = 0

    def turn() -> None:
        nonlocal turns
        turns += 1
        loop.call_soon(turn)

    async def handler(_: int) -> None:
        end = time.perf_counter() + 0.0002
        while time.perf_counter() < end:
            pass

    loop = asyncio.get_running_loop()
    calls = Calls(handler)
    following = iter(range(100, 200))
    calls.on_ended = lambda: calls.start(*[n for _, n in zip(range(2), following, strict=False)])
    loop.call_soon(turn)
    calls.start(0, 1)
    await calls.wait_for(102)
    # 102 calls of 0.2 ms, of which those of 0.5 ms and two more share a turn.
    assert turns > 15


async def test_quick_calls_join_a_task_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that begin as the last ones end."""
    monkeypatch.setattr("lisa_consumer.handler_tasks._TURN_S", 10.0)
    used = set()

    async def handler(_: int) -> None:
        used.add(id(current()))

    calls = Calls(handler)
    calls.on_ended = lambda: calls.start(*([2, 3] if len(calls.ended) == 2 else []))
    calls.start(0, 1)
    await calls.wait_for(4)
    assert calls.ended == [0, 1, 2, 3]
    assert len(used) == 1


async def test_cancel_returns_what_has_not_begun() -> None:
    """So that it can be given back."""
    begun = []

    async def handler(number: int) -> None:
        begun.append(number)
        await asyncio.Event().wait()

    calls = Calls(handler)
    calls.start(0)
    await wait_until_async(lambda: begun == [0])
    calls.start(1, 2)
    unbegun = await calls.tasks.cancel()
    assert [each.delivery.id for each in unbegun] == ["1", "2"]
    assert begun == [0]
    assert calls.ended == [0]
    assert len(calls.tasks) == 0


async def test_nothing_begins_within_the_call_that_starts_it() -> None:
    """As `asyncio.eager_task_factory` of Python 3.12 would have it."""
    starting = False

    async def handler(_: int) -> None:
        assert not starting

    loop = asyncio.get_running_loop()
    loop.set_task_factory(eager)  # type: ignore[arg-type]
    calls = Calls(handler)
    starting = True
    calls.start(0, 1, 2)
    starting = False
    await calls.wait_for(3)
    assert sorted(calls.ended) == [0, 1, 2]


def eager(loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], **options: Any) -> "asyncio.Task[Any]":
    """Runs a task at once, up to its first wait."""
    try:
        awaited = coro.send(None)
    except StopIteration as stop:
        return asyncio.Task(_return(stop.value), loop=loop, **options)
    return asyncio.Task(_rest(coro, awaited), loop=loop, **options)


async def _return(value: object) -> object:
    return value


async def _rest(coro: Coroutine[Any, Any, Any], awaited: Any) -> Any:
    @coroutine
    def steps() -> Any:
        nonlocal awaited
        while True:
            sent = yield awaited
            try:
                awaited = coro.send(sent)
            except StopIteration as stop:
                return stop.value

    return await steps()
