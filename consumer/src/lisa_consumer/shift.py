"""One run of a worker: what it has in hand, and the tasks that move it."""

import asyncio
import logging
import time
from collections.abc import Mapping
from concurrent.futures import Executor
from contextlib import suppress

from lisa_common.aio import AsyncConnection, cancel_all
from lisa_common.delivery import Delivery
from lisa_common.errors import OF_THE_SERVER, LisaError
from lisa_common.protocol.consuming import Nack
from lisa_common.transport.server import RECONNECT
from lisa_consumer.core import Core
from lisa_consumer.hand import Hand
from lisa_consumer.handler import Route, verdict
from lisa_consumer.leases import Leases
from lisa_consumer.queues import Queues
from lisa_consumer.settings import ConsumerSettings
from lisa_consumer.settler import Settler
from lisa_consumer.slots import Slots

__all__ = ["HANDLER", "Shift"]

logger = logging.getLogger(__name__)

HANDLER = "lisa-handler"
"""The name of the tasks in which handlers run, and what the names of their threads begin with."""

_CANCEL_S = 1.0
"""How long a handler that was cancelled may take to end."""

_ASIDE_S = 10.0
"""How long a topic is left alone that could not be read."""

_NARROW = 4
"""A topic that has so many times less room than another is read by itself."""

_BUSY_POLL_S = 0.05
"""How long a topic that was full is waited for at the server while the others are, or one that was left alone."""


class Shift:
    """Reads, handles and settles, for one worker, until it is told to stop."""

    def __init__(
        self,
        connection: AsyncConnection,
        core: Core,
        routes: Mapping[str, Route],
        *,
        threads: Executor,
        settings: ConsumerSettings,
        stopping: asyncio.Event,
        renewing: AsyncConnection,
    ) -> None:
        self._connection = connection
        self._core = core
        self._routes = routes
        slots = Slots(settings.concurrency, {topic: route.concurrency for topic, route in routes.items()})
        self._threads = threads
        self._settings = settings
        self._leases = Leases(renewing, core)
        self._settler = Settler(connection, core, self._settled)
        self._hands = {topic: Hand(route.concurrency, settings.prefetch) for topic, route in routes.items()}
        self._queues = Queues(
            *(renewing, core, slots, stopping), begin=self._begin, soon=lambda topic: self._hands[topic].soon
        )
        self._running: set[asyncio.Task[None]] = set()
        self._stopping = stopping
        self._room = asyncio.Event()
        self._aside: dict[str, float] = {}
        """Topics that cannot be read, and until when they are left alone."""

    async def work(self) -> None:
        """Reads and handles until told to stop, then drains. Cancelled, it cancels its handlers, settles what ended."""
        keeper = asyncio.create_task(self._leases.run(list(self._routes)))
        settler = asyncio.create_task(self._settler.run())
        marker = asyncio.create_task(self._queues.run())
        reader = asyncio.create_task(self._read())
        waiter = asyncio.create_task(self._stopping.wait())
        try:
            done, _ = await asyncio.wait((keeper, settler, marker, reader, waiter), return_when=asyncio.FIRST_COMPLETED)
            self._stopping.set()
            self._room.set()
            for task in done:
                task.result()
            # What waits in hand does not wait for the last read, which may take as long as the server lets it.
            await self._give_back_unbegun()
            await reader
            await self._drain()
        finally:
            self._stopping.set()
            await cancel_all(reader, waiter, marker)
            await self._cancel_handlers()
            self._settler.close()
            # Without a server there is nobody to tell: what was handled comes again when its lease has run out.
            await asyncio.wait((settler,), timeout=self._settings.drain_s + 1)
            await cancel_all(settler, keeper)

    # Reading

    async def _read(self) -> None:
        failures, complained = 0, False
        while not self._stopping.is_set():
            try:
                await self._leases.learn(list(self._routes))
                while not self._stopping.is_set():
                    all_well = await self._read_once()
                    failures = 0
                    if complained and all_well:
                        logger.info("the server is back")
                        complained = False
            except LisaError as error:
                failures += 1
                log = logger.debug if complained else logger.warning
                log("cannot read, will try again: %s", error)
                complained = True
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), RECONNECT.compute(failures))

    async def _read_once(self) -> bool:
        """Reads what there is room for. Result: whether that tells that all servers of the topics answer.

        A read of several servers that brings something tells it of some only.
        """
        self._room.clear()
        self._aside = {topic: end for topic, end in self._aside.items() if end > time.monotonic()}
        topics = self._hands.keys() - self._aside.keys()
        rooms = self._rooms(topics)
        if rooms and len(rooms) < len(topics):
            await self._read_beside(rooms, topics - rooms.keys())
        elif rooms:
            return not await self._read_rooms(rooms, wait=self._settings.block_s)
        else:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._room.wait(), _BUSY_POLL_S if self._aside else None)
        return False

    def _rooms(self, topics: set[str]) -> dict[str, int]:
        """Of these topics those that are worth a read, and how many messages they have room for."""
        return {t: hand.room for t, hand in self._hands.items() if t in topics and hand.is_worth_a_read}

    async def _read_beside(self, rooms: dict[str, int], full: set[str]) -> None:
        """Waits at the server for topics that have room; meanwhile reads those that were full, as they get room."""
        waiting = asyncio.create_task(self._read_rooms(rooms, wait=self._settings.block_s))
        waiting.add_done_callback(lambda _: self._room.set())
        failure: LisaError | None = None
        try:
            # Until it ends by itself: were it broken off, it might be given messages that nobody has then until their
            # leases run out.
            while not waiting.done():
                self._room.clear()
                freed = self._rooms(full - self._aside.keys())
                if freed and not failure and not self._stopping.is_set():
                    try:
                        await self._read_rooms(freed, wait=_BUSY_POLL_S)
                    except LisaError as error:
                        failure = error
                else:
                    await self._room.wait()
            if not waiting.result() and failure:
                raise failure
        finally:
            await cancel_all(waiting)

    async def _read_rooms(self, rooms: dict[str, int], *, wait: float | None) -> int:
        """Reads topics, each up to its room. Result: how many messages that has brought."""
        widest = max(rooms.values())
        narrow = {topic: room for topic, room in rooms.items() if room * _NARROW < widest}
        if narrow:
            # One read has one limit for all of its topics: what is nearly full must not hold up the others.
            wide = {topic: room for topic, room in rooms.items() if topic not in narrow}
            if brought := await self._read_apart(wide, narrow):
                return brought
        left = {topic: room for topic, room in rooms.items() if topic not in self._aside}
        return await self._read_topics(list(left), min(left.values()), wait=wait) if left else 0

    async def _read_apart(self, *parts: dict[str, int]) -> int:
        """Reads what there is, by one read for each part. One that fails is heard of where the others bring nothing."""
        brought = 0
        failure: LisaError | None = None
        for rooms in parts:
            try:
                brought += await self._read_topics(list(rooms), min(rooms.values()), wait=None)
            except LisaError as error:
                failure = error
        if failure and not brought:
            raise failure
        return brought

    async def _read_topics(self, topics: list[str], limit: int, *, wait: float | None) -> int:
        """Reads topics and takes what they bring; one that cannot be read is set aside, so that the others are."""
        flow = self._core.read(topics, limit=limit, wait=wait, block=self._settings.block_s)
        try:
            deliveries = await self._connection.run(flow)
        except OF_THE_SERVER:
            raise
        except LisaError as error:
            if len(topics) > 1:
                return sum([await self._read_topics([topic], limit, wait=None) for topic in topics])
            logger.error("topic %s cannot be read, will try again in %g s: %s", topics[0], _ASIDE_S, error)
            self._aside[topics[0]] = time.monotonic() + _ASIDE_S
            return 0
        self._take(deliveries)
        return len(deliveries)

    def _take(self, deliveries: list[Delivery]) -> None:
        self._leases.hold(deliveries)
        for delivery in deliveries:
            self._hands[delivery.topic].held += 1
        self._queues.add(deliveries)

    # Handling

    def _begin(self, delivery: Delivery) -> None:
        handling = self._handle(self._routes[delivery.topic], delivery)
        self._running.add(asyncio.create_task(handling, name=HANDLER))

    async def _handle(self, route: Route, delivery: Delivery) -> None:
        try:
            if not self._leases.begin(delivery, route.timeout_s):
                logger.warning("%s is not begun: its lease has run out while it was held", delivery)
                self._queues.forget(delivery)
                self._settled(delivery)
                return
            began = time.monotonic()
            nack = await self._verdict(route, delivery)
            self._hands[delivery.topic].note(time.monotonic() - began)
            self._leases.end(delivery)
            self._settler.settle(delivery, nack)
        finally:
            if task := asyncio.current_task():
                self._running.discard(task)
            self._queues.end(delivery)

    async def _verdict(self, route: Route, delivery: Delivery) -> Nack | None:
        try:
            await route.call(delivery, self._threads)
        except asyncio.CancelledError:
            # By the drain, whose patience ended, or by the handler's own doing: it did not finish either way.
            return Nack(delivery.entry, "the handler was cancelled before it ended")
        except BaseException as error:
            if not isinstance(error, LisaError):
                logger.warning("the handler of %s failed", delivery, exc_info=error)
            return verdict(delivery, error)
        return None

    def _settled(self, delivery: Delivery) -> None:
        self._leases.drop(delivery)
        self._hands[delivery.topic].held -= 1
        self._room.set()

    # Ending

    async def _drain(self) -> None:
        await self._give_back_unbegun()
        if self._running:
            logger.info("%d handlers are running, up to %g s", len(self._running), self._settings.drain_s)
            await asyncio.wait(self._running, timeout=self._settings.drain_s)

    async def _cancel_handlers(self) -> None:
        self._queues.take_back()
        for task in self._running:
            task.cancel()
        if self._running:
            # One that does not heed it is left behind.
            await asyncio.wait(self._running, timeout=_CANCEL_S)

    async def _give_back_unbegun(self) -> None:
        deliveries = self._queues.take_back()
        if not deliveries:
            return
        try:
            released = await self._connection.run(self._core.release(deliveries), patience_s=1)
            logger.info("%d deliveries that had not begun were given back", released)
        except LisaError as error:
            logger.warning("%d deliveries come again when their leases run out: %s", len(deliveries), error)
        for delivery in deliveries:
            self._settled(delivery)
