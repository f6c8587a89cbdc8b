"""What a worker has in hand that has not begun, and who begins next."""

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Sequence

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.model.delivery import Delivery, Entry
from lisa_common.protocol.marking import Begun
from lisa_consumer.beginnings import Beginnings
from lisa_consumer.core import MAX_BATCH, Core
from lisa_consumer.isolation import Isolation
from lisa_consumer.marks import Marking
from lisa_consumer.slots import Slots

__all__ = ["Queues"]


class Queues:
    """A queue for each topic that has anything waiting, and one for what is to run alone.

    `begin` is called with each delivery once it has a slot and the server takes it for begun. `soon` says of a topic
    how many begin in a moment. Once the worker is stopping, `may_begin` says of a topic whether what is held still
    begins, and nothing begins alone any more.
    """

    def __init__(
        self,
        connection: AsyncConnection,
        core: Core,
        slots: Slots,
        stopping: asyncio.Event,
        *,
        begin: Callable[[Delivery], None],
        soon: Callable[[str], int],
        may_begin: Callable[[str], bool],
    ) -> None:
        self._slots = slots
        self._queues: dict[str, deque[Delivery]] = defaultdict(deque)
        self._soon = soon
        self._may_begin = may_begin
        self._beginnings = Beginnings(connection, core, begin, self._look_ahead)
        self._isolation = Isolation(self.start, lambda alone: self._beginnings.change([alone], Begun.BESIDE))
        self._stopping = stopping
        core.mark_beginnings(Marking(self._count_beginning, self._beginnings.leave, self._beginnings.inherit))

    async def run(self) -> None:
        """Tells the server what begins, until cancelled."""
        await self._beginnings.run()

    def add(self, deliveries: Sequence[Delivery]) -> None:
        """Takes what was read."""
        for delivery in deliveries:
            if delivery.alone:
                self._isolation.add(delivery)
            else:
                self._queues[delivery.topic].append(delivery)
        self._beginnings.cover(delivery for delivery in deliveries if delivery.entry.begun)
        if self._isolation.holds_back:
            # They were read before something was to run alone.
            self._hold_back()
        self.start()

    def end(self, delivery: Delivery) -> None:
        """Notes that a delivery which had begun has ended: another one may begin."""
        self._slots.give_back(delivery.topic)
        if self._isolation.is_wanted:
            self._isolation.end(delivery)
            self.start()
        elif self._queues:
            self.start()

    def forget(self, delivery: Delivery) -> None:
        """Lets go of a delivery that was to begin, and will neither begin nor be settled: it costs no attempt."""
        self._beginnings.uncover([delivery])

    @property
    def topics(self) -> list[str]:
        """Those of which anything waits for its turn."""
        return list(self._queues)

    @property
    def is_beginning(self) -> bool:
        """Whether anything has a slot, and begins once the server knows."""
        return self._beginnings.is_beginning

    def take_back(self, topics: Collection[str] | None = None) -> list[Delivery]:
        """What has not begun of these topics, or of all, and what was to run alone; none of it will begin."""
        beginning = self._beginnings.take_back(topics)
        for delivery in beginning:
            self._slots.give_back(delivery.topic)
            self._isolation.end(delivery)
        chosen = [topic for topic in self._queues if topics is None or topic in topics]
        waiting = [delivery for topic in chosen for delivery in self._queues.pop(topic)]
        return [*beginning, *self._isolation.take_back(), *waiting]

    def start(self) -> None:
        """Starts what may run: of each topic in turn, while there are slots."""
        is_stopping = self._stopping.is_set()
        if self._isolation.is_wanted and not is_stopping:
            self._start_alone()
        waiting = [] if self._isolation.holds_back else list(self._queues)
        if is_stopping:
            waiting = [topic for topic in waiting if self._may_begin(topic)]
        while waiting:
            waiting = [topic for topic in waiting if self._start_one(topic) and topic in self._queues]

    def _start_alone(self) -> None:
        running = self._slots.taken
        if alone := self._isolation.next(running, self._slots.take):
            self._hold_back()
            self._beginnings.begin(alone, Begun.BESIDE if running else Begun.ALONE)

    def _hold_back(self) -> None:
        """What was to begin soon waits for what runs alone."""
        self._beginnings.uncover(self._replace(begun=False))

    def _start_one(self, topic: str) -> bool:
        if not self._slots.take(topic):
            return False
        queue = self._queues[topic]
        delivery = queue.popleft()
        if not queue:
            del self._queues[topic]
        self._beginnings.begin(delivery)
        return True

    def _count_beginning(self, topics: list[str], batches: list[list[Entry]]) -> list[int]:
        """How many of each batch that was read begin at once, as things stand; topics may have several batches."""
        is_wanted = self._isolation.is_wanted or any(entry.alone for batch in batches for entry in batch)
        if self._stopping.is_set() or is_wanted:
            return [0] * len(batches)
        begin = self._share_out(topics, batches)
        for topic in begin:
            begin[topic] += self._soon(topic)
        counts = []
        for topic, batch in zip(topics, batches, strict=True):
            counts.append(min(begin[topic], len(batch)))
            begin[topic] -= counts[-1]
        return counts

    def _share_out(self, topics: list[str], batches: list[list[Entry]]) -> Counter[str]:
        """How many of each topic find a slot, as `_start` would give them."""
        slots, begin, left = self._slots.copy(), Counter[str](), Counter[str]()
        for topic, batch in zip(topics, batches, strict=True):
            left[topic] += len(batch)
        turn = [topic for topic in left if topic not in self._queues]
        while turn := [topic for topic in turn if begin[topic] < left[topic] and slots.take(topic)]:
            begin.update(turn)
        return begin

    def _look_ahead(self, topics: Iterable[str]) -> list[Delivery]:
        """What waits and will begin in a moment, of these topics; it counts as begun from now on."""
        ahead: list[Delivery] = []
        for topic in topics:
            ahead += self._replace(topic, self._soon(topic), begun=True)
        return ahead

    def _replace(self, topic: str | None = None, limit: int = MAX_BATCH, *, begun: bool) -> list[Delivery]:
        """Changes whether the next of a topic, or of all, count as begun. Result: those that it changed."""
        changed = []
        for queue in (self._queues.get(topic, deque()),) if topic else self._queues.values():
            for at in range(min(limit, len(queue))):
                delivery = queue[at]
                if delivery.entry.begun is not begun:
                    queue[at] = delivery._replace(entry=delivery.entry._replace(begun=begun))
                    changed.append(queue[at])
        return changed
