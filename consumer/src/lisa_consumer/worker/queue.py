"""The deliveries that a worker holds and that have not begun, and which of them begins next."""

import asyncio
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import takewhile

from lisa_common.client.async_tasks import wait_at_most
from lisa_common.model.delivery import Entry
from lisa_consumer.handling.batches import BatchSize
from lisa_consumer.handling.handler import Route
from lisa_consumer.worker.concurrency import ConcurrencyLimit
from lisa_consumer.worker.held import HeldDelivery
from lisa_consumer.worker.quarantine import Quarantine

__all__ = ["Queue"]

_SLACK_S = 0.001
"""How much later than a moment to look: the event loop may wake a little early."""


class Queue:
    """A deque for each topic with waiting deliveries, the slots of handlers, and the deliveries that run alone.

    A batch gathers here until it is complete: what starts is one delivery, or the first of a batch.
    """

    def __init__(self, concurrency: int, routes: Iterable[Route]) -> None:
        """Raises InvalidInput if `concurrency` is less than one for each topic that shares it."""
        routes = list(routes)
        self._limit = ConcurrencyLimit(concurrency, {each.topic: each.concurrency for each in routes if not each.batch})
        self._waiting: dict[str, deque[HeldDelivery]] = {}
        self._sizes: dict[str, BatchSize] = {}
        """Of the topics whose handlers take batches."""
        self._quarantine = Quarantine()
        self._changed = asyncio.Event()
        self._drains_to: Collection[str] | None = None
        """While the worker stops: the topics of which deliveries still start."""
        self._is_flushed = False
        """Whether batches start although they are not complete, because nothing else is ready."""
        self.is_paused = False
        """Whether nothing starts. Any thread may set it."""
        for route in filter(lambda each: each.batch, routes):
            self.add(route)

    def add(self, route: Route) -> None:
        """Adds a topic."""
        if route.batch:
            self._sizes[route.topic] = route.batch
        self._limit.add(route.topic, route.concurrency, shares=route.batch is None)

    def forget(self, topic: str) -> None:
        """Forgets a topic. Call it once none of its deliveries is held."""
        self._sizes.pop(topic, None)
        self._limit.remove(topic)

    def put(self, fetched: Iterable[HeldDelivery]) -> None:
        """Takes what a read has brought."""
        waiting, now = self._waiting, time.monotonic()
        for held in fetched:
            held.enqueue(now)
            if held.delivery.entry.alone:
                self._quarantine.add(held)
            elif (topic := held.delivery.topic) in waiting:
                waiting[topic].append(held)
            else:
                waiting[topic] = deque((held,))
        self._is_flushed = False
        self._changed.set()

    def free(self, topic: str) -> None:
        """Frees the slot of a call that has ended, or will not be made."""
        self._limit.release(topic)
        self._changed.set()

    def leave(self, settled: Iterable[HeldDelivery]) -> None:
        """Takes settled deliveries. If a later one kills the process, that is not charged to one that ran alone."""
        if self._quarantine.is_wanted:
            for held in settled:
                self._quarantine.end(held)
            self._changed.set()

    def wake(self) -> None:
        """Makes `wait` return, to look again at what may start."""
        self._changed.set()

    def flush(self) -> None:
        """Starts batches with what is held, as nothing else is ready."""
        self._is_flushed = True
        self._changed.set()

    def drain(self, topics: Collection[str]) -> None:
        """Starts only deliveries of these topics from now on, and batches that are not complete."""
        self._drains_to = topics
        self._changed.set()

    # What starts

    async def wait(self) -> None:
        """Waits until more may start."""
        next_at = self._next_at()
        seconds = None if next_at == math.inf else next_at - time.monotonic() + _SLACK_S
        await wait_at_most(self._changed, seconds) if seconds is not None else await self._changed.wait()

    def take(self) -> list[HeldDelivery]:
        """Gives slots to what may start, one call of each topic in turn. Returns these, of batches the first ones."""
        self._changed.clear()
        if self.is_paused:
            return []
        if self._quarantine.is_wanted and self._drains_to is None and (alone := self._quarantine.next(self._limit)):
            alone.start()
            alone.batch = [alone] if alone.delivery.topic in self._sizes else None
            return [alone]
        if self._quarantine.holds_back or not self._waiting:
            return []
        turn = list(self._waiting)
        if self._drains_to is not None:
            turn = [topic for topic in turn if topic in self._drains_to]
        if len(turn) == 1:
            return self._start_some(turn[0], len(self._waiting[turn[0]]))
        started: list[HeldDelivery] = []
        while turn:
            begun = [self._start_some(topic, 1) for topic in turn]
            turn = [topic for topic, some in zip(turn, begun, strict=True) if some and topic in self._waiting]
            started += [held for some in begun for held in some]
        return started

    def share(self) -> HeldDelivery | None:
        """The delivery that has run alone for so long that others may start beside it now, if any."""
        return self._quarantine.share() if self._quarantine.is_wanted else None

    def _start_some(self, topic: str, most: int) -> list[HeldDelivery]:
        """Starts up to `most` calls of a topic."""
        if topic in self._sizes:
            return self._start_batches(topic, most)
        waiting = self._waiting[topic]
        count = self._limit.acquire_some(topic, min(most, len(waiting)))
        started = [waiting.popleft() for _ in range(count)]
        for held in started:
            held.start()
        if started:
            self._requeue(topic, waiting)
        return started

    def _start_batches(self, topic: str, most: int) -> list[HeldDelivery]:
        waiting, size = self._waiting[topic], self._sizes[topic]
        started: list[HeldDelivery] = []
        while len(started) < most and self._is_complete(waiting, size) and self._limit.acquire(topic):
            batch = [waiting.popleft() for _ in range(min(size.most, len(waiting)))]
            for held in batch:
                held.start()
            batch[0].batch = batch
            started.append(batch[0])
        if started:
            self._requeue(topic, waiting)
        return started

    def _requeue(self, topic: str, waiting: deque[HeldDelivery]) -> None:
        """Puts a topic behind the others: where one delivery ends at a time, each topic must have its turn."""
        del self._waiting[topic]
        if waiting:
            self._waiting[topic] = waiting

    def _is_complete(self, waiting: Sequence[HeldDelivery], size: BatchSize) -> bool:
        """Whether a batch of these may start: it has all its messages, or its time has come, or no more will."""
        if not waiting:
            return False
        ends = self._drains_to is not None or self._is_flushed or len(waiting) >= size.most
        return ends or time.monotonic() >= waiting[0].queued_at + size.within_s

    def _next_at(self) -> float:
        """When more may start although nothing changes; infinite for never."""
        if self.is_paused:
            return math.inf
        if self._quarantine.holds_back or (self._quarantine.is_wanted and self._drains_to is None):
            next_at = self._quarantine.next_at
        else:
            next_at = math.inf
        if self._quarantine.holds_back or self._drains_to is not None:
            return next_at
        gathering = [topic for topic in self._sizes if topic in self._waiting and self._limit.room(topic) > 0]
        ends = [self._waiting[topic][0].queued_at + self._sizes[topic].within_s for topic in gathering]
        return min([next_at, *ends])

    # What waits

    @property
    def is_awaited(self) -> bool:
        """Whether a delivery waits that may still start."""
        return any(self._drains_to is None or topic in self._drains_to for topic in self._waiting)

    @property
    def topics(self) -> list[str]:
        """Topics with waiting deliveries."""
        return list(self._waiting)

    def waiting(self, topic: str) -> Sequence[HeldDelivery]:
        """The waiting deliveries of a topic, without those that run alone."""
        return self._waiting.get(topic, ())

    @property
    def holds_back(self) -> bool:
        """Whether a delivery runs alone, or is about to."""
        return self._quarantine.holds_back

    def has_slot(self, topic: str) -> bool:
        """Whether a handler of a topic may be called."""
        return self._limit.room(topic) > 0

    def count_startable(self, read: Mapping[str, Sequence[Entry]]) -> Counter[str] | None:
        """How many entries of each topic that was read now would start at once; None if nothing starts soon."""
        if self.is_paused or self._drains_to is not None or self._quarantine.is_wanted:
            return None
        if any(entry.alone for entries in read.values() for entry in entries):
            return None
        counts = Counter[str]()
        for topic in read.keys() & self._sizes.keys():
            # They begin to gather at once.
            room = self._sizes[topic].most * self._limit.room(topic) - len(self.waiting(topic))
            counts[topic] = max(0, min(room, len(read[topic])))
        turn = [topic for topic in read if topic not in self._sizes and topic not in self._waiting]
        if len(turn) == 1:
            counts[turn[0]] = min(len(read[turn[0]]), self._limit.room(turn[0]))
            return counts
        limit = self._limit.copy()
        while turn := [topic for topic in turn if counts[topic] < len(read[topic]) and limit.acquire(topic)]:
            counts.update(turn)
        return counts

    # What goes back

    def clear(self, topics: Collection[str] | None = None) -> list[HeldDelivery]:
        """Removes what has not started of these topics, or of all, and all that was to run alone. Returns those."""
        chosen = [topic for topic in self._waiting if topics is None or topic in topics]
        removed = [held for topic in chosen for held in self._waiting.pop(topic)]
        self._changed.set()
        return self._quarantine.clear() + removed

    def clear_overdue(self, topic: str, since: float) -> list[HeldDelivery]:
        """Removes waiting deliveries of a topic that were read before a moment. Returns those."""
        waiting = self._waiting.get(topic, deque())
        overdue = list(takewhile(lambda held: held.read_at < since, waiting))
        for _ in overdue:
            waiting.popleft()
        if not waiting:
            self._waiting.pop(topic, None)
        return overdue

    def clear_overdue_alone(self, is_overdue: Callable[[HeldDelivery], bool]) -> list[HeldDelivery]:
        """Removes deliveries that have waited too long to run alone. Returns those."""
        return self._quarantine.clear(is_overdue)
