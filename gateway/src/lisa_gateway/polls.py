"""Long polls of one group: few reads at the server for all polls of this process.

Each polled topic is in one waiting read. A topic that is polled first while a read is under way gets another read at
once. That one waits for a shorter time, so that the longer one soon takes its topics along. So there is one read while
nothing changes, and never more than there are `_BLOCKS`. No read is cancelled: the server may have answered it.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from lisa_common.errors import OF_THE_SERVER, LisaError
from lisa_common.logs import event
from lisa_common.model.delivery import Delivery
from lisa_consumer import AsyncLender

__all__ = ["MAX_BATCH", "Poller", "Polls"]

logger = logging.getLogger(__name__)

MAX_BATCH = 1_000
"""Most messages, or receipts, of one request."""

_BLOCKS = (1.0, 0.25, 0.06, 0.015)
"""How long the reads wait, in seconds: the first for topics that are polled all the time, the others for new topics."""


@dataclass(slots=True, eq=False)
class Poller:
    """A poller that waits for up to `batch` messages of a topic, each leased for `lease_s` seconds.

    `by_id`: its messages are ended by their ids, not by receipts.
    """

    topic: str
    batch: int
    lease_s: float
    by_id: bool
    future: asyncio.Future[list[Delivery]] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def leave(self) -> None:
        """Ends the wait without messages: at its timeout, or as the client has hung up."""
        if not self.future.done():
            self.future.set_result([])

    @property
    def is_served(self) -> bool:
        """Whether the wait has ended."""
        return self.future.done()


@dataclass(slots=True)
class _Topic:
    """The pollers of a topic, first come, first served."""

    pollers: OrderedDict[Poller, None] = field(default_factory=OrderedDict)
    demand: int = 0
    """Messages that they would take."""
    is_covered: bool = False
    """Whether a read waits for it."""


_Served = list[tuple[Poller, list[Delivery]]]


class Polls:
    """The pollers of one group in this process."""

    def __init__(self, lender: AsyncLender) -> None:
        self._lender = lender
        self._topics: dict[str, _Topic] = {}
        self._free = list(reversed(_BLOCKS))
        """Waits of the reads that may be begun; the longest is last."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped = False
        self.users = 0
        """Requests that use them; they are closed only once these have ended."""
        self._looking: set[str] = set()
        """Topics that a poll looks at before it waits."""

    @property
    def count(self) -> int:
        """How many wait now."""
        return sum(len(topic.pollers) for topic in self._topics.values())

    @property
    def is_busy(self) -> bool:
        """Whether a request or a read uses them now."""
        return bool(self.users or self._tasks)

    def count_of(self, topic: str) -> int:
        """How many wait for a topic."""
        waiting = self._topics.get(topic)
        return len(waiting.pollers) if waiting else 0

    async def pull(self, topic: str, batch: int, lease_s: float, *, by_id: bool) -> list[Delivery]:
        """Reads up to `batch` messages without a wait, and lends them. Raises LisaError."""
        deliveries = await self._lender.read(batch, topics=topic)
        await self.release(deliveries[batch:])
        try:
            return await self._lend([(delivery, lease_s) for delivery in deliveries[:batch]], by_id=by_id)
        except LisaError:
            await self.release(deliveries[:batch])
            raise

    async def poll(self, poller: Poller, wait_s: float) -> list[Delivery]:
        """Waits for messages; empty at the timeout, after `leave`, and once the gateway stops. Raises LisaError.

        Pollers of one topic are served in the order in which they come.
        """
        deadline = time.monotonic() + wait_s
        if not (self.count_of(poller.topic) or poller.topic in self._looking or self._stopped):
            # The first poller looks by itself. All others that come meanwhile share a read, as there may be thousands.
            self._looking.add(poller.topic)
            try:
                deliveries = await self.pull(poller.topic, poller.batch, poller.lease_s, by_id=poller.by_id)
            finally:
                self._looking.discard(poller.topic)
            if deliveries or poller.is_served:
                # A client that hung up meanwhile gets them as well: the caller gives them back.
                return deliveries
        if self._stopped:
            return []
        timer = asyncio.get_running_loop().call_later(max(0.0, deadline - time.monotonic()), poller.leave)
        self._enter(poller)
        try:
            return await poller.future
        finally:
            timer.cancel()
            self._remove(poller)

    async def release(self, deliveries: Sequence[Delivery]) -> None:
        """Gives back deliveries that are not sent: they are ready again at once, and no attempt is spent."""
        if not deliveries:
            return
        try:
            await self._lender.hand_back(*deliveries)
        except LisaError as error:
            logger.warning(
                "cannot release %d messages, they come again later: %s",
                len(deliveries),
                error,
                extra=event("release_failed", count=len(deliveries), error=str(error)),
            )

    def stop(self) -> None:
        """Ends all polls with an empty answer, and begins no more reads."""
        self._stopped = True
        for topic in list(self._topics.values()):
            for poller in list(topic.pollers):
                poller.leave()

    async def close(self) -> None:
        """Stops, and waits until the last reads have ended and their messages are released."""
        self.stop()
        while self._tasks:
            await asyncio.wait(list(self._tasks))
        await self._lender.close()

    def _enter(self, poller: Poller, *, first: bool = False) -> None:
        topic = self._topics.setdefault(poller.topic, _Topic())
        topic.pollers[poller] = None
        if first:
            topic.pollers.move_to_end(poller, last=False)
        topic.demand += poller.batch
        if not topic.is_covered:
            self._cover()

    def _remove(self, poller: Poller) -> None:
        topic = self._topics.get(poller.topic)
        if topic and poller in topic.pollers:
            del topic.pollers[poller]
            topic.demand -= poller.batch
            self._forget(poller.topic, topic)

    def _forget(self, name: str, topic: _Topic) -> None:
        if not topic.pollers and not topic.is_covered:
            del self._topics[name]

    def _cover(self) -> None:
        """Begins a read of the polled topics that no read waits for, unless all reads are under way."""
        if not self._free or self._stopped:
            return
        names = [name for name, topic in self._topics.items() if topic.pollers and not topic.is_covered]
        if not names:
            return
        for name in names:
            self._topics[name].is_covered = True
        task = asyncio.create_task(self._read(names, self._free.pop()))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _read(self, names: list[str], block_s: float) -> None:
        # A command has one limit for all topics: the smallest that any needs. Pollers that want more are topped up.
        limit = min(MAX_BATCH, *(max(1, self._topics[name].demand) for name in names))
        error: LisaError | None = None
        deliveries: list[Delivery] = []
        try:
            deliveries = await self._lender.read(limit, wait=block_s, topics=names)
        except LisaError as raised:
            error = raised
        except Exception as raised:
            logger.exception("a read failed", extra=event("read_failed"))
            error = LisaError(str(raised))
        served, rest = self._assign(deliveries)
        failed = self._uncover(names, block_s, error)
        try:
            await self._serve(served, rest, limit)
        except LisaError as raised:
            _fail([poller for poller, _ in served], raised)
            await self.release([*rest, *(delivery for _, batch in served for delivery in batch)])
        if error and failed:
            await self._read_apart(failed, error)

    def _uncover(self, names: list[str], block_s: float, error: LisaError | None) -> list[Poller]:
        """Ends a read, and begins the next. Returns the pollers that its error concerns, taken out of the queue."""
        self._free.append(block_s)
        self._free.sort()
        failed: list[Poller] = []
        for name in names:
            topic = self._topics[name]
            topic.is_covered = False
            if error:
                failed += topic.pollers
                topic.pollers.clear()
                topic.demand = 0
            self._forget(name, topic)
        self._cover()
        return failed

    async def _read_apart(self, failed: list[Poller], error: LisaError) -> None:
        """After an error: if only some topics have it, their pollers get it, and the others wait on."""
        names = dict.fromkeys(poller.topic for poller in failed)
        broken: dict[str, LisaError] = {}
        if isinstance(error, OF_THE_SERVER) or len(names) == 1:
            broken = dict.fromkeys(names, error)
        else:
            for name in names:
                try:
                    await self.release(await self._lender.read(1, topics=name))
                except LisaError as raised:
                    broken[name] = raised
        for poller in failed:
            if poller.topic in broken:
                _fail([poller], broken[poller.topic])
            elif not poller.is_served:
                self._enter(poller)

    def _assign(self, deliveries: Sequence[Delivery]) -> tuple[_Served, list[Delivery]]:
        """Gives each poller in turn what it asked for. Returns the messages of each poller, and those left over."""
        by_topic: dict[str, list[Delivery]] = {}
        for delivery in deliveries:
            by_topic.setdefault(delivery.topic, []).append(delivery)
        served: _Served = []
        rest: list[Delivery] = []
        for name, batch in by_topic.items():
            topic = self._topics[name]
            at = 0
            while at < len(batch) and topic.pollers:
                poller, _ = topic.pollers.popitem(last=False)
                topic.demand -= poller.batch
                if not poller.is_served:
                    served.append((poller, batch[at : at + poller.batch]))
                    at += poller.batch
            rest += batch[at:]
        return served, rest

    async def _serve(self, served: _Served, rest: list[Delivery], limit: int) -> None:
        """Lends messages to their pollers, and wakes these. Releases the rest."""
        if served:
            await self._top_up(served, limit)
            kept: set[tuple[str, str, str]] = set()
            for by_id in {poller.by_id for poller, _ in served}:
                asking = [each for each in served if each[0].by_id is by_id]
                loans = [(delivery, poller.lease_s) for poller, batch in asking for delivery in batch]
                kept.update(delivery.place for delivery in await self._lend(loans, by_id=by_id))
            for poller, batch in served:
                lent = [delivery for delivery in batch if delivery.place in kept]
                if poller.is_served:
                    rest += lent
                elif lent:
                    poller.future.set_result(lent)
                else:
                    self._enter(poller, first=True)
        await self.release(rest)

    async def _top_up(self, served: _Served, limit: int) -> None:
        """Reads on for those who get less than they asked for although there may be more."""
        for poller, batch in served:
            missing = poller.batch - len(batch)
            if missing and len(batch) >= limit:
                try:
                    more = await self._lender.read(missing, topics=poller.topic)
                except LisaError as error:
                    logger.debug(
                        "cannot top up a poll of %s: %s",
                        poller.topic,
                        error,
                        extra=event("read_failed", topic=poller.topic, error=str(error)),
                    )
                    return
                batch.extend(more[:missing])
                await self.release(more[missing:])

    async def _lend(self, loans: Sequence[tuple[Delivery, float]], *, by_id: bool) -> list[Delivery]:
        if not loans:
            return []
        kept = await self._lender.lend(*loans, by_id=by_id)
        return [delivery for (delivery, _), is_kept in zip(loans, kept, strict=True) if is_kept]


def _fail(pollers: Sequence[Poller], error: LisaError) -> None:
    for poller in pollers:
        if not poller.is_served:
            poller.future.set_exception(error)
