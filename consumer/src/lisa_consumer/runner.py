"""Runs the handlers of a worker, from the fetched deliveries to the end of the drain."""

import asyncio
import logging
import time
from collections.abc import Collection, Iterable, Mapping, MutableMapping, Sequence
from concurrent.futures import Executor

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.client.async_tasks import cancel_all, wait_at_most
from lisa_common.errors import LisaError
from lisa_common.logs import event
from lisa_common.observing.health import Health
from lisa_consumer.concurrency import ConcurrencyLimit
from lisa_consumer.core import Core, ReadResult
from lisa_consumer.events import delivery_event
from lisa_consumer.fetcher import Fetcher
from lisa_consumer.gathering import BatchSize, Gatherers
from lisa_consumer.handler import Route
from lisa_consumer.handler_calls import GIVEN_BACK, HandlerCalls
from lisa_consumer.handler_tasks import HandlerTasks
from lisa_consumer.held_delivery import HeldDelivery, count_by_topic, postponed_ms
from lisa_consumer.leases import Leases
from lisa_consumer.queues import Queues
from lisa_consumer.settings import ConsumerSettings
from lisa_consumer.settler import Settler
from lisa_consumer.stalls import Stalls

__all__ = ["Runner"]

logger = logging.getLogger(__name__)

_GIVING_BACK_S = 2.0
"""How long a drain waits for deliveries that are being given back; otherwise their leases have to run out."""

_BEGINNING = 1 / 4
"""The part of a drain in which held deliveries may still begin, if all of them should end within it."""


_ALONE_S = 30.0
"""How much longer a delivery that must run alone may wait, as others run and are held back in turns meanwhile."""


class Runner:
    """Queues what the fetcher brings, runs handlers and settles deliveries; drains when the worker stops."""

    def __init__(
        self,
        connection: AsyncConnection,
        core: Core,
        routes: MutableMapping[str, Route],
        fetcher: Fetcher,
        leases: Leases,
        *,
        threads: Executor,
        settings: ConsumerSettings,
        stopping: asyncio.Event,
        renewing: AsyncConnection,
        health: Health,
    ) -> None:
        self._connection, self._core = connection, core
        self._routes, self._leases = routes, leases
        self._fetcher, self._windows = fetcher, fetcher.windows
        self._stopping, self._health = stopping, health
        self._drain_s = settings.drain_s
        self._settler = Settler(connection, core, self._drop)
        shared = {topic: route.slots for topic, route in routes.items() if not route.batch}
        self._limit = limit = ConcurrencyLimit(settings.concurrency, shared)
        for topic in routes.keys() - shared.keys():
            limit.add(topic, routes[topic].slots, shares=False)
        self._queues = Queues(
            *(renewing, core, limit, stopping),
            begin=self._begin,
            soon=lambda topic: self._windows[topic].soon,
            may_begin=self._is_quick,
        )
        self._gatherers, self._tasks = Gatherers(self._begin_batch, self._queues.waits), HandlerTasks(self._end)
        self._calls = HandlerCalls(
            *(core, self._windows, leases, threads),
            spans_per_s=settings.spans_per_s,
            skip=self._skip,
            end=self._tasks.end,
        )
        self._stalls, self._giving_back = Stalls(), set[asyncio.Task[None]]()
        self._changed = asyncio.Event()  # set when a handler begins or ends during the drain
        self._drain_until = self._begin_until = 0.0

    async def run(self) -> None:
        """Fetches and handles until the worker stops, then drains.

        When cancelled, it cancels its handlers, and settles those that have ended.
        """
        keeper = asyncio.create_task(self._leases.run(self._routes))
        settler = asyncio.create_task(self._settler.run())
        marker = asyncio.create_task(self._queues.run())
        reader = asyncio.create_task(self._fetcher.run(self._add))
        waiter = asyncio.create_task(self._stopping.wait())
        watcher = asyncio.create_task(self._watch())
        self._health.check("reader", self._fetcher.find_problem)
        self._health.check("settler", self._settler.find_problem)
        self._health.check("handlers", self._stalls.find_problem)
        pulse = asyncio.create_task(self._health.run(lambda: self._calls.times.flush(len(self._tasks))))
        try:
            running = (keeper, settler, marker, reader, waiter, watcher)
            done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            self._stop()
            for task in done:
                task.result()
            # Before the last read ends, which may take as long as the server lets it.
            await self._release([topic for topic in self._routes if not self._is_quick(topic)])
            await reader
            await self._drain()
        finally:
            self._stopping.set()
            await cancel_all(reader, waiter, watcher, marker, *self._giving_back)
            await self._cancel_handlers()
            self._settler.close()
            # Without a server nothing can be settled: handled messages come again when their leases have run out.
            await asyncio.wait((settler,), timeout=self._drain_s + 1)
            await cancel_all(settler, keeper, pulse)
            self._calls.times.flush(len(self._tasks))

    # Topics

    async def add(self, routes: Sequence[Route]) -> None:
        """Serves further topics. Raises LisaError if their policies cannot be read."""
        await self._leases.learn([*self._routes, *(route.topic for route in routes)])
        for route in routes:
            self._routes[route.topic] = route
            self._limit.add(route.topic, route.slots, shares=not route.batch)
            self._fetcher.add(route)

    def remove(self, topic: str) -> None:
        """Stops serving a topic once no delivery of it is held."""
        self._fetcher.remove(topic, self._forget)

    def _forget(self, topic: str) -> None:
        self._limit.remove(topic)
        self._gatherers.remove(topic)
        del self._routes[topic]

    # Handling

    def _add(self, fetched: ReadResult) -> None:
        held = [
            HeldDelivery(delivery, fetched.leased_at, number < begun)
            for batch, begun in fetched.batches
            for number, delivery in enumerate(batch)
        ]
        self._gatherers.expects_more |= bool(held)
        self._leases.hold(held)
        if aside := [each for each in held if self._fetcher.is_aside(each.delivery.topic)]:
            self._release_soon(aside)
            held = [each for each in held if each not in aside]
        self._queues.add(held)
        if self._queues.paused:
            # The read was under way when the pause came.
            self._give_back()

    def hold(self) -> None:
        """Begins nothing more, in any thread; `pause` has to follow."""
        self._queues.paused = True

    def pause(self) -> None:
        """Begins nothing more until `resume`, and gives back what has not begun. Running handlers go on."""
        self.hold()
        self._fetcher.pause(paused=True)
        self._give_back()

    def flush(self) -> None:
        """Calls batch handlers with what has gathered, as no more will come."""
        self._gatherers.flush()

    def resume(self) -> None:
        """Ends a pause."""
        self._queues.paused = False
        self._fetcher.pause(paused=False)
        self._queues.start()

    def _give_back(self, shut_ms: Mapping[str, int] | None = None) -> None:
        """Gives back what has not begun; with `shut_ms` only of these topics, for whose doors it then waits so long."""
        if waiting := self._queues.clear(shut_ms):
            self._release_soon(waiting, shut_ms)

    def _release_soon(self, waiting: Sequence[HeldDelivery], shut_ms: Mapping[str, int] | None = None) -> None:
        task = asyncio.create_task(self._release_held(waiting, shut_ms))
        self._giving_back.add(task)
        task.add_done_callback(self._giving_back.discard)

    def _begin(self, started: Sequence[HeldDelivery]) -> None:
        """Begins deliveries of one topic."""
        route = self._routes[started[0].delivery.topic]
        if route.batch is None:
            for held in started:
                self._tasks.start((held,), self._calls.one(route, held))
        else:
            self._gather(route, route.batch, started)
        if self._drain_until:
            self._changed.set()

    def _end(self, ended: list[HeldDelivery]) -> None:
        """Takes deliveries whose tasks have ended: settles those that were handled, and begins others."""
        handled = [held for held in ended if held.took_s is not None]
        if self._stalls:
            self._read_again(count_by_topic(ended))
        self._calls.observe(handled)
        postponed = postponed_ms(handled)
        self._settler.settle(handled, at_once=bool(postponed))
        if postponed:
            # Before others of these topics begin.
            self._fetcher.set_aside(handled)
            self._give_back(postponed)
        for held in ended:
            if held.leads_batch:
                self._gatherers.end(held.delivery.topic)
        self._queues.end(ended)
        if self._stalls:
            self._read_again(filter(self._has_slot, self._stalls))
        if len(handled) < len(ended):
            # Only now: once nothing of a topic is held, it may be removed, and its slots with it.
            self._drop([held for held in ended if held.took_s is None])
        if self._drain_until:
            self._changed.set()

    def _skip(self, skipped: Sequence[HeldDelivery]) -> None:
        """Stops renewing and marking deliveries whose handlers cannot begin. Their slots stay taken until `_end`."""
        self._leases.drop(skipped)
        for held in skipped:
            text = "skipped %s: its lease ran out before its handler could begin"
            logger.warning(text, held.delivery, extra=delivery_event("delivery_skipped", held.delivery))
            self._queues.drop(held)

    def _gather(self, route: Route, size: BatchSize, started: Sequence[HeldDelivery]) -> None:
        """Adds deliveries to a batch: a task for each would cost more than the handler of a batch."""
        if route.body is not None:
            started = [held for held in started if self._decode(route, held)]
        if started:
            self._gatherers.add(route.topic, started, size, route.concurrency)

    def _decode(self, route: Route, held: HeldDelivery) -> bool:
        """Decodes a body. Result: False if that failed; then the delivery belongs to no batch, and ends by itself."""
        try:
            held.delivery = route.decoded(held.delivery)
        except BaseException:  # noqa: BLE001 - met again, and judged, by a call of its own
            self._tasks.start((held,), self._calls.one(route, held))
            return False
        return True

    def _begin_batch(self, topic: str, batch: list[HeldDelivery]) -> None:
        batch[0].leads_batch = True
        self._tasks.start(batch, self._calls.batch(self._routes[topic], batch))

    def _drop(self, held: Sequence[HeldDelivery]) -> None:
        self._leases.drop(held)
        self._fetcher.release(count_by_topic(held))
        self._queues.leave(held)

    # Handlers that do not end

    async def _watch(self) -> None:
        """Gives back what waits for longer than a visibility timeout behind handlers that do not end."""
        while True:
            await asyncio.sleep(self._leases.pause_s)
            if overdue := self._clear_overdue():
                self._release_soon(overdue)
            # A slot may also come free as another topic is removed.
            self._read_again(filter(self._has_slot, self._stalls))
            self._stalls.report()

    def _clear_overdue(self) -> list[HeldDelivery]:
        """Removes what has waited too long, and stops reading its topics, or it would come again at once."""
        now = time.monotonic()
        since = {topic: now - self._leases.visibility_s(topic) for topic in self._routes}
        overdue = self._queues.clear_overdue_alone(lambda held: held.read_at < since[held.delivery.topic] - _ALONE_S)
        for topic in {*self._queues.topics, *self._gatherers.topics}:
            gathered = self._gatherers.clear_overdue(topic, since[topic])
            waiting = [] if self._limit.room(topic) > 0 else self._queues.clear_overdue(topic, since[topic])
            if gathered or waiting:
                overdue += waiting + gathered
                self._stall(topic, {*waiting, *gathered})
                self._queues.end(gathered)
        return overdue

    def _stall(self, topic: str, overdue: Collection[HeldDelivery]) -> None:
        if topic not in self._stalls:
            self._fetcher.stall(topic)
            running = [held for held in self._leases.of_topic(topic) if held not in overdue]
            read_at, oldest = min(((held.read_at, held.delivery.id) for held in running), default=(0.0, "?"))
            window = self._windows[topic]
            since, visibility_s = max(read_at, window.observed_at), self._leases.visibility_s(topic)
            self._stalls.begin(topic, since=since, visibility_s=visibility_s, mean_s=window.mean_s, oldest=oldest)

    def _has_slot(self, topic: str) -> bool:
        """Whether a handler of a topic may begin. Batches have slots while they gather: only the end of one tells."""
        return self._routes[topic].batch is None and self._limit.room(topic) > 0

    def _read_again(self, topics: Iterable[str]) -> None:
        for topic in topics:
            if topic in self._stalls:
                self._stalls.end(topic)
                self._fetcher.resume(topic)

    # Draining

    def _stop(self) -> None:
        self._stopping.set()
        now = time.monotonic()
        self._drain_until = now + self._drain_s
        self._begin_until = now + self._drain_s * _BEGINNING
        self._fetcher.wake()
        self._queues.start()
        self._gatherers.close()

    def _is_quick(self, topic: str) -> bool:
        """Whether the held deliveries of a topic should be handled soon enough to begin during the drain."""
        return time.monotonic() + self._windows[topic].expected_s < self._begin_until

    def _waits_to_begin(self) -> bool:
        """Whether a delivery may still begin during the drain."""
        return self._queues.is_beginning or bool(self._tasks and any(map(self._is_quick, self._queues.topics)))

    async def _drain(self) -> None:
        while (left_s := self._begin_until - time.monotonic()) > 0 and self._waits_to_begin():
            self._changed.clear()
            await wait_at_most(self._changed, left_s)
        await self._release(None)
        if self._tasks:
            left_s = max(0.0, self._drain_until - time.monotonic())
            fields = event("drain_waiting", count=len(self._tasks), seconds=round(left_s, 3))
            logger.info("waiting for handlers: %d, up to %g s", len(self._tasks), left_s, extra=fields)
        # As a batch ends, another one may begin.
        while (left_s := self._drain_until - time.monotonic()) > 0 and (running := self._tasks.unfinished):
            await asyncio.wait(running, timeout=left_s)
        if self._giving_back:
            await asyncio.wait(self._giving_back, timeout=_GIVING_BACK_S)

    async def _cancel_handlers(self) -> None:
        """Cancels what still runs, and gives back what that leaves behind."""
        self._calls.is_cancelling = True
        unbegun = [*self._queues.clear(), *self._gatherers.clear(), *await self._tasks.cancel()]
        for held in unbegun:
            held.outcome = GIVEN_BACK
        self._settler.settle(unbegun)

    async def _release(self, topics: Collection[str] | None) -> None:
        """Releases the deliveries of these topics, or of all, that have not begun."""
        if waiting := self._queues.clear(topics):
            await self._release_held(waiting)

    async def _release_held(self, waiting: Sequence[HeldDelivery], shut_ms: Mapping[str, int] | None = None) -> None:
        count = len(waiting)
        try:
            flow = self._core.release([held.delivery for held in waiting], shut_ms)
            released = await self._connection.run(flow, patience_s=1)
            fields = event("deliveries_released", group=self._core.group, count=released)
            logger.info("released %d deliveries that had not begun", released, extra=fields)
        except LisaError as error:
            fields = event("release_failed", group=self._core.group, count=count, error=str(error))
            logger.warning("cannot release %d deliveries; their leases will run out: %s", count, error, extra=fields)
        self._drop(waiting)
