"""Gathers deliveries for handlers that take several at once."""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from lisa_common.errors import InvalidInput, LisaError
from lisa_common.model.delivery import Delivery
from lisa_consumer.held_delivery import HeldDelivery

__all__ = ["BatchFailed", "BatchSize", "Gatherers", "OfBatch"]


class BatchSize(NamedTuple):
    """When a batch is complete: with its last message, or after so many seconds."""

    most: int
    within_s: float


_PAIRS = "pairs of a delivery and an exception"


class BatchFailed(LisaError):
    """Raised by a batch handler that could not handle some of its messages: the others are acked.

    `failed` are pairs of a delivery and its error: what a handler of one message would have raised, so `Retry`,
    `Reject` and `Snooze` work as there.
    """

    def __init__(self, failed: Iterable[tuple[Delivery, BaseException]]) -> None:
        if not isinstance(failed, Iterable):
            raise InvalidInput("failed", failed, _PAIRS)
        self.failed = list(failed)
        for pair in self.failed:
            match pair:
                case (Delivery(), BaseException()):
                    continue
            raise InvalidInput("failed", pair, _PAIRS)
        super().__init__(f"{len(self.failed)} messages of the batch failed")


class OfBatch(LisaError):
    """The error of a delivery whose batch failed. The first delivery raises `cause` itself, so one log shows it."""

    def __init__(self, cause: BaseException) -> None:
        self.cause = cause
        super().__init__(str(type(cause).__name__))


class _Gatherer:
    """Collects the deliveries of one topic, and begins a call of the handler with up to `size.most` of them.

    At most `concurrency` calls run at once; meanwhile the next batch gathers. A delivery that must run alone is a
    batch of its own. `begin` starts a call; `end` has to follow.
    """

    def __init__(self, size: BatchSize, concurrency: int, begin: Callable[[list[HeldDelivery]], None]) -> None:
        self._size = size
        self._concurrency = concurrency
        self._begin = begin
        self._gathered: list[HeldDelivery] = []
        self._calls = 0
        self._changed_at = 0.0
        """When a call last began or ended."""
        self._timer: asyncio.TimerHandle | None = None
        self._is_due = False
        self._closed = False

    def add(self, added: Sequence[HeldDelivery]) -> None:
        """Adds deliveries to the batch that gathers."""
        now = time.monotonic()
        for held in added:
            held.gathered_at = now
            if held.delivery.entry.alone:
                self._call([held])
            else:
                self._gathered.append(held)
        if not self._gathered:
            return
        if self._closed or len(self._gathered) >= self._size.most:
            self._start()
        elif self._timer is None:
            self._set_timer()

    def end(self) -> None:
        """Notes that a call has ended."""
        self._calls -= 1
        self._changed_at = time.monotonic()
        self._start()

    def close(self) -> None:
        """Lets no delivery wait for others any longer."""
        self._closed = True
        self._start()

    def clear(self) -> list[HeldDelivery]:
        """Removes the deliveries that still gather. Result: those."""
        gathered, self._gathered = self._gathered, []
        return gathered

    def clear_overdue(self, since: float) -> list[HeldDelivery]:
        """Removes deliveries that were read before a moment, if no call has begun or ended since. Result: those."""
        if self._calls < self._concurrency or self._changed_at > since:
            return []
        overdue = [held for held in self._gathered if held.read_at < since]
        self._gathered = [held for held in self._gathered if held.read_at >= since]
        if not self._gathered:
            self._clear_timer()
        return overdue

    def flush(self) -> None:
        """Completes the batch that gathers."""
        self._is_due = bool(self._gathered)
        self._start()

    def _start(self) -> None:
        """Begins the batches that are complete, as far as calls may run."""
        while self._gathered and self._calls < self._concurrency:
            if len(self._gathered) < self._size.most and not self._is_due and not self._closed:
                break
            batch, self._gathered = self._gathered[: self._size.most], self._gathered[self._size.most :]
            self._clear_timer()
            if self._gathered and not self._closed:
                self._set_timer()
            self._call(batch)

    def _clear_timer(self) -> None:
        self._is_due = False
        if self._timer:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._size.within_s, self.flush)

    def _call(self, batch: list[HeldDelivery]) -> None:
        self._calls += 1
        self._changed_at = time.monotonic()
        self._begin(batch)


class Gatherers:
    """Collects deliveries by topic. `begin` starts a call of a topic's handler with a batch; `end` has to follow.

    `waits` returns whether held deliveries of a topic are yet to be added.
    """

    def __init__(self, begin: Callable[[str, list[HeldDelivery]], None], waits: Callable[[str], bool]) -> None:
        self._begin = begin
        self._waits = waits
        self._gatherers: dict[str, _Gatherer] = {}
        self.expects_more = True
        """Whether batches wait for other messages than those held; set it when a read has brought some."""
        self._closed = False

    def add(self, topic: str, added: Sequence[HeldDelivery], size: BatchSize, concurrency: int) -> None:
        """Adds deliveries to the batch of their topic that gathers."""
        gatherer = self._gatherers.get(topic)
        if gatherer is None:
            gatherer = self._gatherers[topic] = _Gatherer(size, concurrency, partial(self._begin, topic))
            if self._closed:
                gatherer.close()
        gatherer.add(added)
        if not self.expects_more and not self._waits(topic):
            gatherer.flush()

    def end(self, topic: str) -> None:
        """Notes that a call has ended."""
        self._gatherers[topic].end()

    def remove(self, topic: str) -> None:
        """Forgets a topic, of which nothing is held."""
        self._gatherers.pop(topic, None)

    def flush(self) -> None:
        """Completes all batches once all held deliveries of their topics are in them, as nothing else is ready."""
        self.expects_more = False
        for topic, gatherer in self._gatherers.items():
            if not self._waits(topic):
                gatherer.flush()

    def close(self) -> None:
        """Lets no delivery wait for others any longer, as few will come; they still wait for a call to end."""
        self._closed = True
        for gatherer in self._gatherers.values():
            gatherer.close()

    @property
    def topics(self) -> list[str]:
        """Topics that have had batches."""
        return list(self._gatherers)

    def clear_overdue(self, topic: str, since: float) -> list[HeldDelivery]:
        """Removes what has gathered since before a moment because the calls do not end. Result: those."""
        gatherer = self._gatherers.get(topic)
        return gatherer.clear_overdue(since) if gatherer else []

    def clear(self) -> list[HeldDelivery]:
        """Removes the deliveries that still gather. Result: those."""
        return [held for gatherer in self._gatherers.values() for held in gatherer.clear()]
