"""The tasks of handlers that are under way."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextvars import Context, copy_context
from operator import is_
from sys import getrefcount
from typing import Any, NamedTuple
from weakref import getweakrefcount

from lisa_consumer.held_delivery import HeldDelivery
from lisa_consumer.names import HANDLER

__all__ = ["HandlerTasks"]

_CANCEL_S = 1.0
"""How long a cancelled handler may take to end."""

_CREATE_TASK = asyncio.BaseEventLoop.create_task
"""How event loops of asyncio create tasks, unless somebody has replaced it."""

_TURN_S = 0.0005
"""For how long others may join the calls of one task, while everything else in the event loop waits."""


class _Call(NamedTuple):
    """A call of a handler, and the deliveries that it handles."""

    deliveries: Sequence[HeldDelivery]
    handling: Coroutine[Any, Any, None]


class _SharedTask(asyncio.Task[None]):
    """A task that several calls of handlers may share, and that notes whether one of them changes it."""

    is_changed = False

    def cancel(self, msg: object = None) -> bool:
        self._note_change()
        return super().cancel(msg)

    def set_name(self, value: object, /) -> None:
        self._note_change()
        super().set_name(value)

    def add_done_callback(self, fn: Callable[[Any], object], /, *, context: Context | None = None) -> None:
        self._note_change()
        super().add_done_callback(fn, context=context)

    def __setattr__(self, name: str, value: object) -> None:
        self._note_change()
        super().__setattr__(name, value)

    def _note_change(self) -> None:
        super().__setattr__("is_changed", True)


class HandlerTasks:
    """Runs calls of handlers in tasks, and calls `on_ended` with the deliveries whose calls end.

    A call cannot tell that it has no task of its own: calls that begin together share a task as long as each ends
    without a wait and leaves nothing behind, neither a context variable nor a change of the task or a reference to it.
    As soon as one waits or leaves something behind, each of the others gets a task of its own. With a task factory,
    or an event loop that creates tasks in its own way, each call has one, as these may keep anything for each task.

    Many calls end in one turn of the event loop. `on_ended` is called once for all of them: at once if none is left, or
    else after the turn.
    """

    def __init__(self, on_ended: Callable[[list[HeldDelivery]], None]) -> None:
        self._on_ended = on_ended
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()
        """Of the worker: what begins as a handler ends must not see context variables of that handler."""
        self._tasks: dict[asyncio.Task[None], deque[_Call]] = {}
        """Each with the calls that it is still to begin."""
        self._gathering: deque[_Call] | None = None
        """The calls of the latest shared task, if others may join them."""
        self._is_creating = False
        self._running = 0
        """Calls that were started and of which `on_ended` does not know that they have ended."""
        self._ended: list[HeldDelivery] = []
        self._ending = 0
        """How many of the running calls have ended."""

    def __len__(self) -> int:
        """How many calls run."""
        return self._running - self._ending

    def start(self, deliveries: Sequence[HeldDelivery], handling: Coroutine[Any, Any, None]) -> None:
        """Starts a call, which has to call `end` with its deliveries."""
        call = _Call(deliveries, handling)
        if self._gathering is not None:
            self._gathering.append(call)
        elif self._may_share:
            self._create_shared_task(call)
        else:
            self._create_task(call)
        self._running += 1

    @property
    def _may_share(self) -> bool:
        """Whether nobody else creates tasks, or looks at each that is created."""
        is_plain = getattr(self._loop.create_task, "__func__", None) is _CREATE_TASK
        return is_plain and self._loop.get_task_factory() is None

    def _create_shared_task(self, call: _Call) -> None:
        calls = deque((call,))
        # The name tells the worker that a handler still runs.
        task = self._context.copy().run(_SharedTask, self._run(calls), loop=self._loop, name=HANDLER)
        self._tasks[task] = self._gathering = calls
        # Not by its own method, for which that would be a change.
        asyncio.Task.add_done_callback(task, self._forget)

    def _create_task(self, call: _Call) -> None:
        calls = deque((call,))
        self._is_creating = True
        try:
            task = self._context.copy().run(self._loop.create_task, self._run(calls), name=HANDLER)
        finally:
            self._is_creating = False
        self._tasks[task] = calls
        task.add_done_callback(self._forget)

    async def _run(self, calls: deque[_Call]) -> None:
        """Runs calls one after the other until one waits; `_spread` then takes the others."""
        if self._is_creating:
            # A task factory may run it at once, while its caller is still busy with what begins.
            await asyncio.sleep(0)
        if len(calls) > 1:
            self._loop.call_soon(self._spread, calls, context=self._context)
            await self._run_together(calls)
        else:
            self._close(calls)
            await calls.popleft().handling

    async def _run_together(self, calls: deque[_Call]) -> None:
        task: Any = asyncio.current_task()
        before, references, weak_references = copy_context(), getrefcount(task), getweakrefcount(task)
        until = time.monotonic() + _TURN_S
        while calls:
            await calls.popleft().handling
            if (
                task.is_changed
                or getrefcount(task) > references
                or getweakrefcount(task) > weak_references
                or not _is_same(copy_context(), before)
            ):
                break
            if time.monotonic() > until:
                self._close(calls)
        self._close(calls)

    def _spread(self, calls: deque[_Call]) -> None:
        """Gives each of these calls a task of its own."""
        self._close(calls)
        while calls:
            self._create_task(calls[0])
            calls.popleft()

    def _close(self, calls: deque[_Call]) -> None:
        """Has no more calls join these."""
        if calls is self._gathering:
            self._gathering = None

    def _forget(self, task: "asyncio.Task[None]") -> None:
        calls = self._tasks.pop(task)
        # A task that was cancelled before its first step has begun none of its calls.
        self._spread(calls)

    def end(self, deliveries: Sequence[HeldDelivery]) -> None:
        """Takes deliveries whose call is about to end."""
        self._ended += deliveries
        self._ending += 1
        if self._ending == self._running:
            # Nothing else will end in this turn, so others may begin in the next one.
            self._context.run(self._flush)
        elif self._ending == 1:
            self._loop.call_soon(self._flush, context=self._context)

    def _flush(self) -> None:
        if self._ended:
            ended, self._ended = self._ended, []
            self._running -= self._ending
            self._ending = 0
            self._on_ended(ended)

    @property
    def unfinished(self) -> list["asyncio.Task[None]"]:
        """The tasks that still run, or that have only just ended."""
        return list(self._tasks)

    async def cancel(self) -> list[HeldDelivery]:
        """Cancels all calls. Result: the deliveries of those that have not begun.

        A handler that ignores its cancellation is left behind.
        """
        unbegun = list[HeldDelivery]()
        for calls in self._tasks.values():
            for deliveries, handling in calls:
                handling.close()
                unbegun += deliveries
            self._running -= len(calls)
            calls.clear()
        if running := self.unfinished:
            for task in running:
                task.cancel()
            await asyncio.wait(running, timeout=_CANCEL_S)
        self._flush()
        return unbegun


def _is_same(context: Context, before: Context) -> bool:
    """Whether all context variables have the objects that they had before."""
    return len(context) == len(before) and (
        not before or (_are_same(context, before) and _are_same(context.values(), before.values()))
    )


def _are_same(some: Iterable[object], others: Iterable[object]) -> bool:
    return all(map(is_, some, others))
