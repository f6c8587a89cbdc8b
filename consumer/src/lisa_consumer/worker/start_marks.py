"""Start marks: a process that dies costs only those deliveries an attempt that had begun.

The server stores the marks, see `lua/include/lease.lua`. A read marks what starts at once, `begin` what waited, and
`look_ahead` what will start in a moment; a settled delivery leaves its mark to an heir.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.errors import LisaError
from lisa_common.logs import event
from lisa_common.model.delivery import Delivery, Entry, entry_place
from lisa_common.model.keys import ShardKeys
from lisa_common.protocol.marking import StartMark
from lisa_consumer.delivery.core import Core, Marks
from lisa_consumer.worker.held import HeldDelivery
from lisa_consumer.worker.queue import Queue
from lisa_consumer.worker.windows import PrefetchWindow

__all__ = ["StartMarks"]

logger = logging.getLogger(__name__)

_REPLY_S = 1.0
"""How long a handler waits for its mark. If it runs without one, a crash gives its message one more delivery."""

Shard = tuple[str, str]


class StartMarks(Marks):
    """Marks deliveries as begun. While one request is on its way to the server, marks for the next one gather.

    Deliveries of a shard begin in the order of their entries, so a mark on one covers all earlier entries that the
    worker holds. A delivery that starts as soon as it is read is marked by the read itself. A delivery that waits is
    marked here before its handler is called, because a handler may end the process in its first moment. When the marked
    delivery is settled, its heir gets the mark: the last of the others that have begun. A delivery that runs alone
    starts out of order, and has a mark of its own.
    """

    def __init__(
        self, connection: AsyncConnection, core: Core, queue: Queue, windows: Mapping[str, PrefetchWindow]
    ) -> None:
        self._connection, self._core = connection, core
        self._queue, self._windows = queue, windows
        self._begun: dict[Shard, dict[str, Delivery]] = defaultdict(dict)
        """Deliveries that a mark covers, in the order of their entries."""
        self._marked: dict[Shard, str] = {}
        """The entry that carries the mark of each shard: the last one when it was marked."""
        self._starting: dict[HeldDelivery, None] = {}
        """Deliveries that run once they are marked; of a batch the first."""
        self._changed: list[tuple[Delivery, StartMark]] = []
        """Marks that no delivery waits for."""
        self._expected: set[str] = set()
        """Topics whose next deliveries are to be marked before they wait for it."""
        self._wake = asyncio.Event()

    # The marks of reads

    def choose(self, batches: Sequence[tuple[ShardKeys, list[Entry]]]) -> dict[ShardKeys, str]:
        """The last entry of each shard that starts at once, or in a moment; that one is marked, for all before it."""
        read: dict[str, list[Entry]] = defaultdict(list)
        for keys, entries in batches:
            read[keys.topic] += entries
        counts = self._queue.count_startable(read)
        if counts is None:
            return {}
        for topic in read:
            waiting = self._queue.waiting(topic)
            # A mark covers all earlier entries, so nothing that still needs one may wait before these.
            is_next = all(held.is_marked for held in waiting)
            counts[topic] = counts[topic] + max(0, self._windows[topic].soon - len(waiting)) if is_next else 0
        chosen: dict[ShardKeys, str] = {}
        for keys, entries in batches:
            if count := min(counts[keys.topic], len(entries)):
                chosen[keys] = entries[count - 1].entry
                counts[keys.topic] -= count
        return chosen

    def take(self, fetched: Sequence[HeldDelivery]) -> None:
        """Takes what a read has brought, when the queue has it."""
        self._cover([held.delivery for held in fetched if held.is_marked])
        if self._queue.holds_back:
            # They were read before a delivery had to run alone.
            self._hold_back()

    # The marks of what starts

    def begin(self, started: Sequence[HeldDelivery]) -> list[HeldDelivery]:
        """Takes what starts. Returns those that the server counts as begun already; `mark` returns the others."""
        marked: list[HeldDelivery] = []
        for held in started:
            if held.is_marked and (held.batch is None or all(each.is_marked for each in held.batch)):
                marked.append(held)
            else:
                self._starting[held] = None
                self._wake.set()
        if self._queue.holds_back:
            self._hold_back()
        for topic in {held.delivery.topic for held in started}:
            self._expect(topic)
        return marked

    def share(self, alone: HeldDelivery) -> None:
        """Marks a delivery that no longer runs alone."""
        self._change([alone.delivery], StartMark.BESIDE)

    async def mark(self) -> list[HeldDelivery]:
        """Waits for what is to be marked, and marks it. Returns what runs now; it runs even if that failed."""
        await self._wake.wait()
        self._wake.clear()
        changed, self._changed = self._changed, []
        starting = [each for held in self._starting for each in held.call if not each.is_marked]
        in_turn = [held for held in starting if not held.delivery.entry.alone]
        expected, self._expected = self._expected, set()
        in_turn += self._look_ahead(expected.union([held.delivery.topic for held in in_turn]))
        covered = [held.delivery for held in in_turn]
        self._cover(covered)
        last = {(delivery.topic, delivery.shard): delivery for delivery in covered}
        alone = [
            (held.delivery, StartMark.BESIDE if held.has_company else StartMark.ALONE)
            for held in starting
            if held.delivery.entry.alone
        ]
        asked = list(self._starting)
        await self._send([*changed, *alone, *((delivery, StartMark.YES) for delivery in last.values())])
        # Others may have been given back meanwhile.
        marked = [held for held in asked if held in self._starting]
        for held in marked:
            del self._starting[held]
        return marked

    def clear(self, topics: Collection[str] | None = None) -> list[HeldDelivery]:
        """Removes what waits for its mark, of these topics or of all. Returns those, of batches the first ones."""
        removed = [held for held in self._starting if topics is None or held.delivery.topic in topics]
        for held in removed:
            del self._starting[held]
        return removed

    def forget(self, topic: str) -> None:
        """Forgets a topic. Call it once none of its deliveries is held."""
        self._expected.discard(topic)
        for shard in [shard for shard in self._begun if shard[0] == topic]:
            del self._begun[shard]
            self._marked.pop(shard, None)

    @property
    def is_awaited(self) -> bool:
        """Whether a delivery runs once it is marked."""
        return bool(self._starting)

    def _expect(self, topic: str) -> None:
        """Has the next deliveries of a topic marked, while those that are marked already start: no handler waits."""
        waiting = self._queue.waiting(topic)
        at = self._windows[topic].soon // 2
        if at < len(waiting) and waiting[0].is_marked and not waiting[at].is_marked:
            self._expected.add(topic)
            self._wake.set()

    def _look_ahead(self, topics: Iterable[str]) -> list[HeldDelivery]:
        """Waiting deliveries of these topics that will start in a moment; they count as begun from now on."""
        soon = [held for topic in topics for held in islice(self._queue.waiting(topic), self._windows[topic].soon)]
        ahead = [held for held in soon if not held.is_marked]
        for held in ahead:
            held.is_marked = True
        return ahead

    def _hold_back(self) -> None:
        """Unmarks what was to start soon: it waits for the delivery that runs alone."""
        for topic in self._queue.topics:
            for held in self._queue.waiting(topic):
                if held.is_marked:
                    held.is_marked = False
                    heirs = self.heirs([held.delivery])
                    self.inherit(heirs)
                    self._change(heirs, StartMark.YES)
                    self._change([held.delivery], StartMark.NOT)

    def _change(self, deliveries: Sequence[Delivery], begun: StartMark) -> None:
        self._changed += [(delivery, begun) for delivery in deliveries]
        if deliveries:
            self._wake.set()

    async def _send(self, marks: list[tuple[Delivery, StartMark]]) -> None:
        try:
            async with asyncio.timeout(_REPLY_S):
                await self._connection.run(self._core.mark(marks))
        except (LisaError, TimeoutError) as error:
            logger.debug("cannot mark deliveries as begun: %s", error, extra=event("mark_failed", error=str(error)))

    # The marks of what is settled

    def _cover(self, deliveries: Iterable[Delivery]) -> None:
        """Takes deliveries that are marked as begun, of each shard in the order of their entries."""
        covered: dict[Shard, dict[str, Delivery]] = defaultdict(dict)
        for delivery in deliveries:
            covered[delivery.topic, delivery.shard][delivery.entry.entry] = delivery
        for shard, entries in covered.items():
            begun = self._begun[shard]
            begun.update(entries)
            last, marked = next(reversed(entries)), self._marked.get(shard)
            if marked and entry_place(next(iter(entries))) < entry_place(marked):
                # It waited for its mark, while an entry that was read later started at once.
                begun = self._begun[shard] = {entry: begun[entry] for entry in sorted(begun, key=entry_place)}
                last = next(reversed(begun))
            self._marked[shard] = last

    def heirs(self, settled: Iterable[Delivery]) -> list[Delivery]:
        """Takes deliveries that are about to be settled. Returns the heirs of the marks that end with them."""
        for delivery in settled:
            self._begun[delivery.topic, delivery.shard].pop(delivery.entry.entry, None)
        return [heir for shard, marked in list(self._marked.items()) if (heir := self._heir_of(shard, marked))]

    def _heir_of(self, shard: Shard, marked: str) -> Delivery | None:
        """The heir of the mark of a shard, if the marked delivery is settled and another has begun."""
        begun = self._begun[shard]
        if marked in begun:
            return None
        heir = next(reversed(begun.values()), None)
        if heir is None:
            del self._marked[shard]
        return heir

    def inherit(self, heirs: Iterable[Delivery]) -> None:
        """Takes heirs that the server has marked. Until then `heirs` returns them again: a request may fail."""
        for heir in heirs:
            shard = heir.topic, heir.shard
            if self._marked.get(shard) not in self._begun[shard]:
                self._marked[shard] = heir.entry.entry
