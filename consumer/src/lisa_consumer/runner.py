"""Runs the handlers of a worker, from the fetched deliveries to the end of the drain."""

import asyncio
import logging
import time
from collections.abc import Collection, Mapping
from concurrent.futures import Executor
from contextlib import suppress

from lisa_common.client.async_connection import AsyncConnection, cancel_all
from lisa_common.errors import LisaError
from lisa_common.model.delivery import Delivery
from lisa_common.protocol.consuming import Nack, Postponed
from lisa_consumer.concurrency import ConcurrencyLimit
from lisa_consumer.core import Core, ReadResult
from lisa_consumer.fetcher import Fetcher
from lisa_consumer.handler import RateLimited, Route, outcome_of
from lisa_consumer.leases import Leases
from lisa_consumer.queues import Queues
from lisa_consumer.settings import ConsumerSettings
from lisa_consumer.settler import Settler

__all__ = ["HANDLER", "Runner"]

logger = logging.getLogger(__name__)

HANDLER = "lisa-handler"
"""The name of handler tasks, and the prefix of the names of handler threads."""

_BEGINNING = 1 / 4
"""The part of a drain in which held deliveries may still begin, if all of them should end within it."""

_CANCEL_S = 1.0
"""How long a cancelled handler may take to end."""


class Runner:
    """Queues what the fetcher brings, runs handlers and settles deliveries; drains when the worker stops."""

    def __init__(
        self,
        connection: AsyncConnection,
        core: Core,
        routes: Mapping[str, Route],
        fetcher: Fetcher,
        leases: Leases,
        *,
        threads: Executor,
        settings: ConsumerSettings,
        stopping: asyncio.Event,
        renewing: AsyncConnection,
    ) -> None:
        self._connection = connection
        self._core = core
        self._routes = routes
        self._fetcher = fetcher
        self._windows = fetcher.windows
        self._leases = leases
        self._threads = threads
        self._drain_s = settings.drain_s
        self._stopping = stopping
        self._settler = Settler(connection, core, self._drop)
        limit = ConcurrencyLimit(settings.concurrency, {topic: route.concurrency for topic, route in routes.items()})
        self._queues = Queues(
            *(renewing, core, limit, stopping),
            begin=self._begin,
            soon=lambda topic: self._windows[topic].soon,
            may_begin=self._is_quick,
        )
        self._running: set[asyncio.Task[None]] = set()
        self._giving_back: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        """Set when a handler begins or ends."""
        self._drain_until = self._begin_until = 0.0

    async def run(self) -> None:
        """Fetches and handles until the worker stops, then drains.

        When cancelled, it cancels its handlers, and settles those that have ended.
        """
        keeper = asyncio.create_task(self._leases.run(list(self._routes)))
        settler = asyncio.create_task(self._settler.run())
        marker = asyncio.create_task(self._queues.run())
        reader = asyncio.create_task(self._fetcher.run(self._add))
        waiter = asyncio.create_task(self._stopping.wait())
        try:
            done, _ = await asyncio.wait((keeper, settler, marker, reader, waiter), return_when=asyncio.FIRST_COMPLETED)
            self._stop()
            for task in done:
                task.result()
            # Before the last read ends, which may take as long as the server lets it.
            await self._release([topic for topic in self._routes if not self._is_quick(topic)])
            await reader
            await self._drain()
        finally:
            self._stopping.set()
            await cancel_all(reader, waiter, marker, *self._giving_back)
            await self._cancel_handlers()
            self._settler.close()
            # Without a server nothing can be settled: handled messages come again when their leases have run out.
            await asyncio.wait((settler,), timeout=self._drain_s + 1)
            await cancel_all(settler, keeper)

    # Handling

    def _add(self, fetched: ReadResult) -> None:
        self._leases.hold(fetched.deliveries, fetched.leased_at)
        self._queues.add(fetched.deliveries)
        if self._queues.paused:
            # The read was under way when the pause came.
            self._give_back()

    def pause(self) -> None:
        """Begins nothing more until `resume`, and gives back what has not begun. Running handlers go on."""
        self._queues.paused = True
        self._fetcher.pause(paused=True)
        self._give_back()

    def resume(self) -> None:
        """Ends a pause."""
        self._queues.paused = False
        self._fetcher.pause(paused=False)
        self._queues.start()

    def _give_back(self) -> None:
        task = asyncio.create_task(self._release(None))
        self._giving_back.add(task)
        task.add_done_callback(self._giving_back.discard)

    def _begin(self, delivery: Delivery) -> None:
        handling = self._handle(self._routes[delivery.topic], delivery)
        self._running.add(asyncio.create_task(handling, name=HANDLER))
        self._changed.set()

    async def _handle(self, route: Route, delivery: Delivery) -> None:
        try:
            if not self._leases.begin(delivery, route.timeout_s):
                logger.warning("skipped %s: its lease ran out before its handler could begin", delivery)
                self._queues.drop(delivery)
                self._drop(delivery)
                return
            began = time.monotonic()
            outcome = await self._call(route, delivery)
            self._windows[delivery.topic].observe(time.monotonic() - began)
            self._leases.end(delivery)
            self._settler.settle(delivery, outcome)
            if isinstance(outcome, Postponed):
                await self._release([delivery.topic])
        finally:
            if task := asyncio.current_task():
                self._running.discard(task)
            self._queues.end(delivery)
            self._changed.set()

    async def _call(self, route: Route, delivery: Delivery) -> Nack | Postponed | None:
        try:
            await route.call(delivery, self._threads)
        except asyncio.CancelledError:
            # The drain cancelled the handler, or the handler itself did: either way it did not finish.
            return Nack(delivery.entry, "the handler was cancelled before it ended")
        except BaseException as error:
            if isinstance(error, RateLimited):
                logger.warning("gave %s back: %s", delivery, error)
            elif not isinstance(error, LisaError):
                logger.warning("the handler of %s failed", delivery, exc_info=error)
            return outcome_of(delivery, error)
        return None

    def _drop(self, delivery: Delivery) -> None:
        self._leases.drop(delivery)
        self._fetcher.release(delivery.topic)

    # Draining

    def _stop(self) -> None:
        self._stopping.set()
        now = time.monotonic()
        self._drain_until = now + self._drain_s
        self._begin_until = now + self._drain_s * _BEGINNING
        self._fetcher.wake()
        self._queues.start()

    def _is_quick(self, topic: str) -> bool:
        """Whether the held deliveries of a topic should be handled soon enough to begin during the drain."""
        return time.monotonic() + self._windows[topic].expected_s < self._begin_until

    def _waits_to_begin(self) -> bool:
        """Whether a delivery may still begin during the drain."""
        return self._queues.is_beginning or bool(self._running and any(map(self._is_quick, self._queues.topics)))

    async def _drain(self) -> None:
        while (left_s := self._begin_until - time.monotonic()) > 0 and self._waits_to_begin():
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._changed.wait()
        await self._release(None)
        if self._running:
            left_s = max(0.0, self._drain_until - time.monotonic())
            logger.info("waiting for handlers: %d, up to %g s", len(self._running), left_s)
            await asyncio.wait(self._running, timeout=left_s)

    async def _cancel_handlers(self) -> None:
        self._queues.clear()
        for task in self._running:
            task.cancel()
        if self._running:
            # A handler that ignores its cancellation is left behind.
            await asyncio.wait(self._running, timeout=_CANCEL_S)

    async def _release(self, topics: Collection[str] | None) -> None:
        """Releases the deliveries of these topics, or of all, that have not begun."""
        deliveries = self._queues.clear(topics)
        if not deliveries:
            return
        try:
            released = await self._connection.run(self._core.release(deliveries), patience_s=1)
            logger.info("released %d deliveries that had not begun", released)
        except LisaError as error:
            logger.warning("cannot release %d deliveries; their leases will run out: %s", len(deliveries), error)
        for delivery in deliveries:
            self._drop(delivery)
