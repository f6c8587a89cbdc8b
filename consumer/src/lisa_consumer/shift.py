"""One run of a worker: what it has in hand, and the tasks that move it."""

import asyncio
import logging
import time
from collections.abc import Collection, Mapping
from concurrent.futures import Executor
from contextlib import suppress

from lisa_common.client.async_connection import AsyncConnection, cancel_all
from lisa_common.errors import LisaError
from lisa_common.model.delivery import Delivery
from lisa_common.protocol.consuming import Nack
from lisa_consumer.core import Core, ReadResult
from lisa_consumer.fetcher import Fetcher
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

_BEGINNING = 1 / 4
"""The part of a drain in which what is held may still begin, and all of it should end."""

_CANCEL_S = 1.0
"""How long a handler that was cancelled may take to end."""


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
        self._router = routes
        slots = Slots(settings.concurrency, {topic: route.concurrency for topic, route in routes.items()})
        self._threads = threads
        self._settings = settings
        self._leases = Leases(renewing, core)
        self._settler = Settler(connection, core, self._settled)
        self._hands = {topic: Hand(route.concurrency, settings.prefetch) for topic, route in routes.items()}
        self._queues = Queues(
            *(renewing, core, slots, stopping),
            begin=self._begin,
            soon=lambda topic: self._hands[topic].soon,
            may_begin=self._is_quick,
        )
        self._running: set[asyncio.Task[None]] = set()
        self._stopping = stopping
        self._moved = asyncio.Event()
        """Set when a handler begins or ends."""
        self._drain_until = self._begin_until = 0.0
        self._fetcher = Fetcher(
            *(connection, core, self._leases, self._hands),
            settings=settings,
            stopping=stopping,
            on_taken=self._take,
        )

    async def work(self) -> None:
        """Reads and handles until told to stop, then drains. Cancelled, it cancels its handlers, settles what ended."""
        keeper = asyncio.create_task(self._leases.run(list(self._router)))
        settler = asyncio.create_task(self._settler.run())
        marker = asyncio.create_task(self._queues.run())
        reader = asyncio.create_task(self._fetcher.run())
        waiter = asyncio.create_task(self._stopping.wait())
        try:
            done, _ = await asyncio.wait((keeper, settler, marker, reader, waiter), return_when=asyncio.FIRST_COMPLETED)
            self._stop()
            for task in done:
                task.result()
            # What waits in hand does not wait for the last read, which may take as long as the server lets it.
            await self._give_back_slow()
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

    # Handling

    def _take(self, taken: ReadResult) -> None:
        self._leases.hold(taken.deliveries, taken.leased_at)
        for delivery in taken.deliveries:
            self._hands[delivery.topic].held += 1
        self._queues.add(taken.deliveries)

    def _begin(self, delivery: Delivery) -> None:
        handling = self._handle(self._router[delivery.topic], delivery)
        self._running.add(asyncio.create_task(handling, name=HANDLER))
        self._moved.set()

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
            self._moved.set()

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
        self._fetcher.wake()

    # Ending

    def _stop(self) -> None:
        self._stopping.set()
        now = time.monotonic()
        self._drain_until = now + self._settings.drain_s
        self._begin_until = now + self._settings.drain_s * _BEGINNING
        self._fetcher.wake()
        self._queues.start()

    def _is_quick(self, topic: str) -> bool:
        """Whether a drain still begins what is held of a topic, as it should soon be handled."""
        return time.monotonic() + self._hands[topic].expected_s < self._begin_until

    def _goes_on(self) -> bool:
        """Whether a drain still waits for something to begin."""
        return self._queues.is_beginning or bool(self._running and any(map(self._is_quick, self._queues.topics)))

    async def _drain(self) -> None:
        while (left_s := self._begin_until - time.monotonic()) > 0 and self._goes_on():
            self._moved.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._moved.wait()
        await self._give_back(None)
        if self._running:
            left_s = max(0.0, self._drain_until - time.monotonic())
            logger.info("%d handlers are running, up to %g s", len(self._running), left_s)
            await asyncio.wait(self._running, timeout=left_s)

    async def _cancel_handlers(self) -> None:
        self._queues.take_back()
        for task in self._running:
            task.cancel()
        if self._running:
            # One that does not heed it is left behind.
            await asyncio.wait(self._running, timeout=_CANCEL_S)

    async def _give_back_slow(self) -> None:
        await self._give_back([topic for topic in self._router if not self._is_quick(topic)])

    async def _give_back(self, topics: Collection[str] | None) -> None:
        """Gives back what has not begun of these topics, or of all."""
        deliveries = self._queues.take_back(topics)
        if not deliveries:
            return
        try:
            released = await self._connection.run(self._core.release(deliveries), patience_s=1)
            logger.info("%d deliveries that had not begun were given back", released)
        except LisaError as error:
            logger.warning("%d deliveries come again when their leases run out: %s", len(deliveries), error)
        for delivery in deliveries:
            self._settled(delivery)
