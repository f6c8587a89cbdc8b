"""The deliveries that a worker holds and that have not begun, and which of them begins next."""

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import islice, takewhile

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.model.delivery import Entry
from lisa_common.protocol.marking import Begun
from lisa_consumer.begun_marker import BegunMarker
from lisa_consumer.concurrency import ConcurrencyLimit
from lisa_consumer.core import Core
from lisa_consumer.held_delivery import HeldDelivery, count_by_topic
from lisa_consumer.isolation import Isolation
from lisa_consumer.mark_hooks import MarkHooks

__all__ = ["Queues"]


class Queues:
    """A queue for each topic with waiting deliveries, and one for those that run alone.

    `begin` is called with deliveries of a topic once they may run and the server takes them for begun. `soon` returns
    how many deliveries of a topic begin in a moment. While the worker stops, `may_begin` returns whether held
    deliveries of a topic still begin; deliveries that run alone do not.
    """

    def __init__(
        self,
        connection: AsyncConnection,
        core: Core,
        limit: ConcurrencyLimit,
        stopping: asyncio.Event,
        *,
        begin: Callable[[Sequence[HeldDelivery]], None],
        soon: Callable[[str], int],
        may_begin: Callable[[str], bool],
    ) -> None:
        self._limit = limit
        self._queues: dict[str, deque[HeldDelivery]] = defaultdict(deque)
        self._soon = soon
        self._may_begin = may_begin
        self._marker = BegunMarker(connection, core, begin, self._look_ahead)
        self._isolation = Isolation(self.start, lambda alone: self._marker.change([alone.delivery], Begun.BESIDE))
        self._stopping = stopping
        self.paused = False
        """Whether nothing begins."""
        core.enable_marks(MarkHooks(self._count_beginning, self._marker.remove, self._marker.inherit))

    async def run(self) -> None:
        """Marks at the server what begins, until cancelled."""
        await self._marker.run()

    def add(self, read: Sequence[HeldDelivery]) -> None:
        """Queues deliveries that were read."""
        for held in read:
            if held.delivery.entry.alone:
                self._isolation.add(held)
            else:
                self._queues[held.delivery.topic].append(held)
        self._marker.add([held.delivery for held in read if held.is_begun])
        if self._isolation.holds_back:
            # They were read before a delivery had to run alone.
            self._hold_back()
        self.start()

    def end(self, ended: Sequence[HeldDelivery]) -> None:
        """Takes deliveries whose handler has ended: others may begin, unless one of these runs alone."""
        for topic, count in count_by_topic(ended).items():
            self._limit.release(topic, count)
        if self._isolation.is_wanted or self._stopping.is_set():
            self.start()
        elif self._queues and not self.paused:
            # Nothing else has changed, so no more can begin than have ended.
            self._start(list(self._queues), len(ended))

    def leave(self, settled: Iterable[HeldDelivery]) -> None:
        """Takes settled deliveries. If a later one kills the process, that is not charged to one that ran alone."""
        if self._isolation.is_wanted:
            for held in settled:
                self._isolation.end(held)
            self.start()

    def drop(self, held: HeldDelivery) -> None:
        """Drops a delivery that was to begin, and will neither begin nor be settled. It costs no attempt."""
        self._marker.unmark([held.delivery])

    @property
    def topics(self) -> list[str]:
        """Topics with waiting deliveries."""
        return list(self._queues)

    def waits(self, topic: str) -> bool:
        """Whether deliveries of a topic wait only for their turn or their marks, and for none that runs alone."""
        return not self._isolation.is_wanted and (topic in self._queues or self._marker.waits(topic))

    @property
    def is_beginning(self) -> bool:
        """Whether a delivery may run, and begins once the server has marked it."""
        return self._marker.is_beginning

    def clear(self, topics: Collection[str] | None = None) -> list[HeldDelivery]:
        """Removes what has not begun of these topics, or of all, and all that was to run alone. Result: those."""
        beginning = self._marker.clear(topics)
        for held in beginning:
            self._limit.release(held.delivery.topic)
            self._isolation.end(held)
        chosen = [topic for topic in self._queues if topics is None or topic in topics]
        waiting = [held for topic in chosen for held in self._queues.pop(topic)]
        removed = [*beginning, *self._isolation.clear(), *waiting]
        if beginning:
            self.start()
        return removed

    def clear_overdue(self, topic: str, since: float) -> list[HeldDelivery]:
        """Removes waiting deliveries of a topic that were read before a moment. Result: those."""
        queue = self._queues.get(topic, deque())
        overdue = list(takewhile(lambda held: held.read_at < since, queue))
        if len(overdue) == len(queue):
            self._queues.pop(topic, None)
        for _ in overdue:
            queue.popleft()
        return overdue

    def clear_overdue_alone(self, is_overdue: Callable[[HeldDelivery], bool]) -> list[HeldDelivery]:
        """Removes deliveries that have waited too long to run alone. Result: those."""
        return self._isolation.clear(is_overdue)

    def start(self) -> None:
        """Starts what may run, one delivery of each topic in turn, up to the limit."""
        if self.paused:
            return
        is_stopping = self._stopping.is_set()
        if self._isolation.is_wanted and not is_stopping:
            self._start_alone()
        waiting = [] if self._isolation.holds_back else list(self._queues)
        if is_stopping:
            waiting = [topic for topic in waiting if self._may_begin(topic)]
        self._start(waiting, sum(len(self._queues[topic]) for topic in waiting))

    def _start(self, waiting: Sequence[str], most: int) -> None:
        """Starts up to `most` deliveries of these topics."""
        if len(waiting) == 1:
            self._start_some(waiting[0], most)
            return
        while waiting and most > 0:
            started = []
            for topic in waiting:
                if most > 0 and self._start_some(topic, 1):
                    most -= 1
                    started.append(topic)
            waiting = [topic for topic in started if topic in self._queues]

    def _start_alone(self) -> None:
        running = self._limit.acquired
        if alone := self._isolation.next(running, self._limit.acquire):
            self._hold_back()
            self._marker.begin([alone], Begun.BESIDE if running else Begun.ALONE)

    def _hold_back(self) -> None:
        """Unmarks what was to begin soon: it waits for the delivery that runs alone."""
        for queue in self._queues.values():
            self._marker.unmark([held.delivery for held in _change(queue, is_begun=False)])

    def _start_some(self, topic: str, most: int) -> int:
        """Starts up to `most` deliveries of a topic. Result: how many."""
        count = self._limit.acquire_some(topic, min(most, len(self._queues[topic])))
        if not count:
            return 0
        # The topic goes behind the others: where one delivery ends at a time, each topic must have its turn.
        queue = self._queues.pop(topic)
        started = [queue.popleft() for _ in range(count)]
        if queue:
            self._queues[topic] = queue
            self._expect(topic, queue)
        self._marker.begin(started)
        return count

    def _expect(self, topic: str, queue: deque[HeldDelivery]) -> None:
        """Has the next deliveries of a topic marked, while those that are marked already begin: no handler waits."""
        at = self._soon(topic) // 2
        if at < len(queue) and queue[0].is_begun and not queue[at].is_begun:
            self._marker.expect(topic)

    def _count_beginning(self, topics: list[str], batches: list[list[Entry]]) -> list[int]:
        """How many of each batch that was read begin at once; a topic may have several batches."""
        is_wanted = self._isolation.is_wanted or any(entry.alone for batch in batches for entry in batch)
        if self._stopping.is_set() or self.paused or is_wanted:
            return [0] * len(batches)
        begin = self._share_out(topics, batches)
        for topic in {*topics}:
            waiting = self._queues.get(topic, ())
            # A mark covers all earlier entries, so nothing that still needs one may wait before these.
            if all(held.is_begun for held in waiting):
                begin[topic] += max(0, self._soon(topic) - len(waiting))
        counts = []
        for topic, batch in zip(topics, batches, strict=True):
            counts.append(min(begin[topic], len(batch)))
            begin[topic] -= counts[-1]
        return counts

    def _share_out(self, topics: list[str], batches: list[list[Entry]]) -> Counter[str]:
        """How many of each topic `start` would start."""
        begin, read = Counter[str](), Counter[str]()
        for topic, batch in zip(topics, batches, strict=True):
            read[topic] += len(batch)
        turn = [topic for topic in read if topic not in self._queues]
        if len(turn) == 1:
            [topic] = turn
            begin[topic] = min(read[topic], self._limit.room(topic))
            return begin
        limit = self._limit.copy()
        while turn := [topic for topic in turn if begin[topic] < read[topic] and limit.acquire(topic)]:
            begin.update(turn)
        return begin

    def _look_ahead(self, topics: Iterable[str]) -> list[HeldDelivery]:
        """Waiting deliveries of these topics that will begin in a moment; they count as begun from now on."""
        return [
            held
            for topic in topics
            if topic in self._queues
            for held in _change(islice(self._queues[topic], self._soon(topic)), is_begun=True)
        ]


def _change(waiting: Iterable[HeldDelivery], *, is_begun: bool) -> list[HeldDelivery]:
    """Sets whether deliveries count as begun. Result: those for which that is new."""
    changed = [held for held in waiting if held.is_begun is not is_begun]
    for held in changed:
        held.is_begun = is_begun
    return changed
