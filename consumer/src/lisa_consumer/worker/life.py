"""The life of a worker that serves: its loops, its pauses, and its stop in order."""

import asyncio
import logging
import time
from collections.abc import Sequence
from concurrent.futures import Executor as Threads
from typing import Any

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.client.async_tasks import cancel_all
from lisa_common.logs import event
from lisa_common.observing.health import Health
from lisa_consumer.delivery.core import Core
from lisa_consumer.handling.handler import Route
from lisa_consumer.settings import ConsumerSettings
from lisa_consumer.worker.executor import Executor
from lisa_consumer.worker.fetcher import Fetcher
from lisa_consumer.worker.leases import Leases
from lisa_consumer.worker.queue import Queue
from lisa_consumer.worker.settler import Settler
from lisa_consumer.worker.stalls import Stalls
from lisa_consumer.worker.start_marks import StartMarks
from lisa_consumer.worker.tracing import HandlerSpans
from lisa_consumer.worker.windows import Windows

__all__ = ["Life"]

logger = logging.getLogger(__name__)

_BEGINNING = 1 / 4
"""The part of a drain in which held deliveries may still begin, if all of them should end within it."""

_ABORT_AFTER_S = 1.0
"""How long deliveries are held before it asks whether they are aborted: quick handlers cost nothing."""

_LATE_ALONE_S = 30.0
"""How much longer a delivery that must run alone may wait: others run and are held back in turns meanwhile."""


class Life:
    """A delivery walks from the fetcher to the queue, the executor and the settler, once; see `held.py`."""

    def __init__(
        self,
        connection: AsyncConnection,
        renewing: AsyncConnection,
        core: Core,
        routes: dict[str, Route],
        *,
        threads: Threads,
        settings: ConsumerSettings,
        stopping: asyncio.Event,
        health: Health,
        burst: bool,
    ) -> None:
        self.routes, self._stopping, self._health, self._drain_s = routes, stopping, health, settings.drain_s
        self._core, self._renewing = core, renewing
        core.own_policies = {topic: route.retries.policy_fields for topic, route in routes.items()}
        self.leases = Leases(renewing, core)
        self._windows, self._queue = Windows(routes, settings.prefetch), Queue(settings.concurrency, routes.values())
        self._marks = StartMarks(renewing, core, self._queue, self._windows)
        core.enable_marks(self._marks)
        self._stalls = Stalls(self._windows)
        self._settler = Settler(connection, core, self._queue, self.leases, self._windows)
        self._executor = Executor(
            *(routes, self._queue, self._marks, self.leases, self._settler),
            windows=self._windows,
            stalls=self._stalls,
            spans=HandlerSpans(core, settings.spans_per_s),
            threads=threads,
        )
        self._fetcher = Fetcher(
            *(connection, core, self._queue, self._executor),
            routes=routes,
            windows=self._windows,
            leases=self.leases,
            marks=self._marks,
            settings=settings,
            stopping=stopping,
            burst=burst,
        )

    @property
    def is_stopping(self) -> bool:
        """Whether the worker drains."""
        return self._stopping.is_set()

    def find_stall(self) -> str:
        """Which topics are stuck, and for how long; "" if none is."""
        return self._stalls.find_problem()

    async def look_for_aborts(self) -> None:
        """Ends handlers of deliveries that an operator has aborted, which the server has ended."""
        since = time.monotonic() - _ABORT_AFTER_S
        # A renewal may have found first that the lease is lost.
        known = dict.fromkeys([*self.leases.held, *self._executor.called])
        held = [each for each in known if each.read_at < since and each.may_be_aborted]
        if held:
            aborted = await self._renewing.run(self._core.find_aborted([each.delivery for each in held]))
            self._executor.abort([each for each, is_aborted in zip(held, aborted, strict=True) if is_aborted])

    # Topics

    async def add(self, routes: Sequence[Route]) -> None:
        """Serves further topics. Raises LisaError if their policies cannot be read."""
        topics = [route.topic for route in routes]
        await self.leases.learn(topics)
        self._core.add_found(topics)
        for route in routes:
            self.routes[route.topic] = route
            self._core.own_policies[route.topic] = route.retries.policy_fields
            self._queue.add(route)
            self._windows.add(route)

    def remove(self, topic: str) -> None:
        """Stops serving a topic once no delivery of it is held."""
        self._fetcher.remove(topic)

    # Pauses

    def hold(self) -> None:
        """Begins nothing more, in any thread; `pause` has to follow."""
        self._queue.is_paused = True

    def pause(self) -> None:
        """Begins nothing more until `resume`, and gives back what has not begun. Running handlers go on."""
        self.hold()
        self._executor.give_back()

    def resume(self) -> None:
        """Ends a pause."""
        self._queue.is_paused = False
        self._queue.wake()
        self._windows.changed.set()

    # The loops

    async def run(self) -> None:
        """Fetches and handles until the worker stops, then drains.

        When cancelled, it cancels its handlers, and settles those that have ended.
        """
        self._health.check("reader", self._fetcher.find_problem)
        self._health.check("settler", self._settler.find_problem)
        self._health.check("handlers", self._stalls.find_problem)
        services = self._settler.run(), self.leases.run(self.routes), self._health.run(self._executor.count_running)
        settling, keeping, *aside = map(asyncio.create_task, services)
        executor = self._executor
        loops = self._fetcher.run(), executor.run(), executor.run_marked(), self._watch(), self._stopping.wait()
        fetching, *others = map(asyncio.create_task, loops)
        try:
            running = (settling, keeping, fetching, *others)
            done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            self._stopping.set()
            for task in done:
                task.result()
            await self._drain(fetching)
        finally:
            self._stopping.set()
            await cancel_all(fetching, *others)
            await self._executor.cancel()
            self._settler.close()
            # Without a server nothing can be settled: handled messages come again when their leases have run out.
            await asyncio.wait((settling,), timeout=self._drain_s + 1)
            await cancel_all(settling, keeping, *aside)
            self._executor.count_running()

    async def _watch(self) -> None:
        """Gives back what waits for longer than a visibility timeout behind handlers that do not end."""
        while True:
            await asyncio.sleep(self.leases.pause_s)
            self._executor.give_back_cancelled()
            self._give_back_overdue()
            # A slot may also come free as another topic is removed.
            self._stalls.end(filter(self._queue.has_slot, list(self._stalls)))
            self._stalls.report()

    def _give_back_overdue(self) -> None:
        """Gives back what has waited too long, and stops reading its topics, or it would come again at once."""
        now = time.monotonic()
        since = {topic: now - self.leases.visibility_s(topic) for topic in self.routes}
        overdue = self._queue.clear_overdue_alone(
            lambda held: held.read_at < since[held.delivery.topic] - _LATE_ALONE_S
        )
        for topic in self._queue.topics:
            is_moving = self.routes[topic].batch is not None and self._windows[topic].observed_at > since[topic]
            if is_moving or self._queue.has_slot(topic):
                continue
            if waiting := self._queue.clear_overdue(topic, since[topic]):
                overdue += waiting
                running = [held for held in self.leases.held if held.delivery.topic == topic and held.is_running]
                self._stalls.begin(topic, running, self.leases.visibility_s(topic))
        self._executor.give_back_each(overdue)

    # The stop

    async def _drain(self, fetching: "asyncio.Task[Any]") -> None:
        """Ends in order: what is quick still begins, the rest goes back, and what runs has until the drain ends."""
        now = time.monotonic()
        begin_until, until = now + self._drain_s * _BEGINNING, now + self._drain_s
        quick = {topic for topic, window in self._windows.items() if now + window.expected_s < begin_until}
        # What gathers for a batch has waited for its turn already.
        quick |= {topic for topic, route in self.routes.items() if route.batch}
        self._windows.changed.set()
        self._queue.drain(quick)
        # Before the last read ends, which may take as long as the server lets it.
        self._executor.give_back(self._windows.keys() - quick)
        # Not beyond the drain, where a server does not answer.
        await asyncio.wait((fetching,), timeout=max(0.0, until - time.monotonic()))
        if fetching.done():
            fetching.result()
        while (left_s := begin_until - time.monotonic()) > 0 and (self._queue.is_awaited or self._marks.is_awaited):
            await self._executor.wait(left_s)
        self._executor.give_back()
        if running := len(self._executor.running):
            left_s = max(0.0, until - time.monotonic())
            fields = event("drain_waiting", count=running, seconds=round(left_s, 3))
            logger.info("waiting for handlers: %d, up to %g s", running, left_s, extra=fields)
        while (left_s := until - time.monotonic()) > 0 and (tasks := self._executor.tasks):
            await asyncio.wait(tasks, timeout=left_s)
