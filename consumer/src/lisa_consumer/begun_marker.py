"""Marks at the server which deliveries have begun, so that a process that dies costs only those an attempt."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.errors import LisaError
from lisa_common.logs import event
from lisa_common.model.delivery import Delivery, entry_place
from lisa_common.protocol.marking import Begun
from lisa_consumer.core import Core
from lisa_consumer.held_delivery import HeldDelivery

__all__ = ["BegunMarker"]

logger = logging.getLogger(__name__)

_REPLY_S = 1.0
"""How long a handler waits for its mark. If it runs without one, a crash gives its message one more delivery."""

Shard = tuple[str, str]


class BegunMarker:
    """Marks deliveries as begun. While one request is on its way to the server, marks for the next one gather.

    Deliveries of a shard begin in the order of their entries, so a mark on one covers all earlier entries that the
    worker holds. A delivery that begins as soon as it is read is marked by the read itself. A delivery that waits is
    marked here before its handler is called, as a handler may end the process in its first moment. When the marked
    delivery is settled, its heir gets the mark: the last of the others that have begun. A delivery that runs alone
    begins out of order, and has a mark of its own.
    """

    def __init__(
        self,
        connection: AsyncConnection,
        core: Core,
        begin: Callable[[Sequence[HeldDelivery]], None],
        look_ahead: Callable[[Iterable[str]], list[HeldDelivery]],
    ) -> None:
        self._connection = connection
        self._core = core
        self._begin = begin
        self._look_ahead = look_ahead
        self._begun: dict[Shard, dict[str, Delivery]] = defaultdict(dict)
        """Deliveries that a mark covers, in the order of their entries."""
        self._marked: dict[Shard, str] = {}
        """The entry that carries the mark of each shard: the last one when it was marked."""
        self._beginning: dict[HeldDelivery, Begun] = {}
        """Deliveries that begin once they are marked."""
        self._changed: list[tuple[Delivery, Begun]] = []
        """Marks that no delivery waits for."""
        self._expected: set[str] = set()
        """Topics whose next deliveries are to be marked before they wait for it."""
        self._wake = asyncio.Event()

    def add(self, deliveries: Iterable[Delivery]) -> None:
        """Takes deliveries that were marked as begun, of each shard in the order of their entries."""
        covered: dict[Shard, dict[str, Delivery]] = defaultdict(dict)
        for delivery in deliveries:
            covered[delivery.topic, delivery.shard][delivery.entry.entry] = delivery
        for shard, entries in covered.items():
            begun = self._begun[shard]
            begun.update(entries)
            last, marked = next(reversed(entries)), self._marked.get(shard)
            if marked and entry_place(next(iter(entries))) < entry_place(marked):
                # It waited for its mark, while an entry that was read later began at once.
                begun = self._begun[shard] = {entry: begun[entry] for entry in sorted(begun, key=entry_place)}
                last = next(reversed(begun))
            self._marked[shard] = last

    def unmark(self, deliveries: Iterable[Delivery]) -> None:
        """Unmarks deliveries that will not begin soon after all."""
        for delivery in deliveries:
            heirs = self.remove([delivery])
            self.inherit(heirs)
            self.change(heirs, Begun.YES)
            self.change([delivery], Begun.NOT)

    def begin(self, started: Sequence[HeldDelivery], begun: Begun = Begun.YES) -> None:
        """Begins deliveries of a topic once they are marked: at once those that the server counts as begun already."""
        at_once = [held for held in started if held.is_begun]
        if len(at_once) < len(started):
            self._beginning |= dict.fromkeys([held for held in started if not held.is_begun], begun)
            self._wake.set()
        if at_once:
            # Last, as it may ask what waits.
            self._begin(at_once)

    def expect(self, topic: str) -> None:
        """Marks the next deliveries of a topic soon."""
        self._expected.add(topic)
        self._wake.set()

    def change(self, deliveries: Sequence[Delivery], begun: Begun) -> None:
        """Changes marks soon."""
        self._changed += [(delivery, begun) for delivery in deliveries]
        if deliveries:
            self._wake.set()

    def remove(self, deliveries: Iterable[Delivery]) -> list[Delivery]:
        """Takes deliveries that are about to be settled. Result: the heirs of the marks that end with them."""
        for delivery in deliveries:
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
        """Takes heirs that the server has marked. Until then `remove` returns them again, as a request may fail."""
        for heir in heirs:
            shard = heir.topic, heir.shard
            if self._marked.get(shard) not in self._begun[shard]:
                self._marked[shard] = heir.entry.entry

    @property
    def is_beginning(self) -> bool:
        """Whether a delivery begins once the server has marked it."""
        return bool(self._beginning)

    def waits(self, topic: str) -> bool:
        """Whether a delivery of a topic begins once the server has marked it."""
        return any(held.delivery.topic == topic for held in self._beginning)

    def clear(self, topics: Collection[str] | None = None) -> list[HeldDelivery]:
        """Removes the deliveries of these topics, or of all, that have not begun. Result: those."""
        removed = [held for held in self._beginning if topics is None or held.delivery.topic in topics]
        for held in removed:
            del self._beginning[held]
        return removed

    async def run(self) -> None:
        """Marks until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self._mark()

    async def _mark(self) -> None:
        """Marks what has gathered."""
        changed, self._changed = self._changed, []
        marked = dict(self._beginning)
        in_turn = [held for held in marked if not held.delivery.alone]
        expected, self._expected = self._expected, set()
        in_turn += self._look_ahead(expected.union([held.delivery.topic for held in in_turn]))
        covered = [held.delivery for held in in_turn]
        self.add(covered)
        last = {(delivery.topic, delivery.shard): delivery for delivery in covered}
        marks = changed + [(held.delivery, begun) for held, begun in marked.items() if held.delivery.alone]
        await self._send([*marks, *((delivery, Begun.YES) for delivery in last.values())])
        for held in marked:
            # Another one may have taken it back meanwhile.
            if self._beginning.pop(held, None):
                self._begin([held])

    async def _send(self, marks: list[tuple[Delivery, Begun]]) -> None:
        try:
            async with asyncio.timeout(_REPLY_S):
                await self._connection.run(self._core.mark(marks))
        except (LisaError, TimeoutError) as error:
            logger.debug("cannot mark deliveries as begun: %s", error, extra=event("mark_failed", error=str(error)))
