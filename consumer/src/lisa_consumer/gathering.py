"""Gathers deliveries for handlers that take several at once."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from lisa_common.errors import InvalidInput, LisaError
from lisa_common.model.delivery import Delivery
from lisa_consumer.middleware import wait_for
from lisa_consumer.names import HANDLER

__all__ = ["BatchFailed", "BatchSize", "Gatherer", "OfBatch"]

Handle = Callable[[list[Delivery]], Awaitable[None]]

_Errors = dict[int, BaseException]
"""By the identity of each member of a batch that has one."""


class BatchSize(NamedTuple):
    """When a batch is complete: with its last message, or after so many seconds."""

    most: int
    within_s: float


class BatchFailed(LisaError):
    """Raised by a batch handler that could not handle some of its messages: the others are acked.

    `failed` are pairs of a delivery and its error: what a handler of one message would have raised, so `Retry`,
    `Reject` and `Snooze` work as there.
    """

    def __init__(self, failed: Iterable[tuple[Delivery, BaseException]]) -> None:
        self.failed = list(failed)
        for pair in self.failed:
            match pair:
                case (Delivery(), BaseException()):
                    continue
            raise InvalidInput("failed", pair, "pairs of a delivery and an exception")
        super().__init__(f"{len(self.failed)} messages of the batch failed")


class OfBatch(LisaError):
    """The error of a delivery whose batch failed. The first delivery raises `cause` itself, so one log shows it."""

    def __init__(self, cause: BaseException) -> None:
        self.cause = cause
        super().__init__(str(type(cause).__name__))


@dataclass(eq=False, slots=True)
class _Member:
    delivery: Delivery
    handle: Handle
    ended: "asyncio.Future[_Errors]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """Done once its batch is handled."""
    task: "asyncio.Task[_Errors] | None" = None
    """The task that handles its batch, once that has begun."""


class Gatherer:
    """Collects the deliveries of one topic, and calls the handler with up to `size.most` of them.

    At most `concurrency` calls run at once; meanwhile the next batch gathers. A delivery that must run alone is a
    batch of its own.
    """

    def __init__(self, size: BatchSize, concurrency: int) -> None:
        self._size = size
        self._concurrency = concurrency
        self._gathered: list[_Member] = []
        self._calls = 0
        self._timer: asyncio.TimerHandle | None = None
        self._is_due = False

    async def call(self, delivery: Delivery, handle: Handle) -> None:
        """Waits until the batch of a delivery is handled. Raises what the handler raised for it."""
        member = _Member(delivery, handle)
        self._gathered.append(member)
        if delivery.alone:
            self._gathered.remove(member)
            self._begin([member])
        elif len(self._gathered) >= self._size.most:
            self._start()
        elif self._timer is None:
            self._set_timer()
        try:
            errors = await member.ended
        except asyncio.CancelledError:
            if member.task is None:
                self._gathered.remove(member)
                raise
            # All deliveries of a batch are cancelled together, when the worker ends.
            member.task.cancel()
            errors = await wait_for(member.task)
        if error := errors.get(id(member)):
            raise error

    def flush(self) -> None:
        """Completes the batch that gathers."""
        self._is_due = bool(self._gathered)
        self._start()

    def _start(self) -> None:
        """Begins the batches that are complete, as far as calls may run."""
        while self._gathered and self._calls < self._concurrency:
            if len(self._gathered) < self._size.most and not self._is_due:
                break
            members, self._gathered = self._gathered[: self._size.most], self._gathered[self._size.most :]
            self._is_due = False
            if self._timer:
                self._timer.cancel()
                self._timer = None
            if self._gathered:
                self._set_timer()
            self._begin(members)

    def _set_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._size.within_s, self.flush)

    def _begin(self, members: list[_Member]) -> None:
        self._calls += 1
        # The name tells the worker that a handler still runs.
        task = asyncio.create_task(self._run(members), name=HANDLER)
        for member in members:
            member.task = task
        # One future for each delivery, and no shield: these would cost more than the handler.
        task.add_done_callback(partial(_end, members))

    async def _run(self, members: Sequence[_Member]) -> _Errors:
        """Handles a batch. Result: the error of each member that has one."""
        try:
            await members[0].handle([member.delivery for member in members])
        except asyncio.CancelledError:
            raise
        except BatchFailed as error:
            by_place = {delivery.place: each for delivery, each in error.failed}
            return {id(m): by_place[m.delivery.place] for m in members if m.delivery.place in by_place}
        except BaseException as error:  # noqa: BLE001 - each member raises it again
            return {id(m): OfBatch(error) if number else error for number, m in enumerate(members)}
        finally:
            self._calls -= 1
            self._start()
        return {}


def _end(members: Sequence[_Member], task: "asyncio.Task[_Errors]") -> None:
    """Wakes the members of a batch whose task has ended."""
    for member in members:
        if member.ended.done():
            # It was cancelled by itself.
            continue
        if task.cancelled():
            member.ended.cancel()
        else:
            member.ended.set_result(task.result())
