"""Calls handlers, and says what the end of each call means for its deliveries."""

import asyncio
import logging
import sys
import time
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from concurrent.futures import Executor as Threads
from contextlib import suppress
from functools import partial
from typing import Any

from lisa_common.client.async_tasks import wait_at_most
from lisa_common.escaping import named_text
from lisa_common.model.delivery import Delivery
from lisa_common.protocol.consuming import Nack, Postponed
from lisa_consumer.delivery.error_details import comes_of_cancellation, leaves
from lisa_consumer.events import delivery_event
from lisa_consumer.handling.batches import BatchFailed, BatchPeerFailed
from lisa_consumer.handling.handler import Route
from lisa_consumer.handling.middleware import check_has_run
from lisa_consumer.handling.retries import outcome_of
from lisa_consumer.handling.wishes import deciding_error, is_wish
from lisa_consumer.metrics import METRICS
from lisa_consumer.names import HANDLER
from lisa_consumer.worker.held import GIVE_BACK, HeldDelivery
from lisa_consumer.worker.leases import Leases
from lisa_consumer.worker.queue import Queue
from lisa_consumer.worker.settler import Settler
from lisa_consumer.worker.stalls import Stalls
from lisa_consumer.worker.start_marks import StartMarks
from lisa_consumer.worker.tracing import HandlerSpans
from lisa_consumer.worker.windows import Windows

__all__ = ["Executor"]

logger = logging.getLogger(__name__)

_CANCEL_S = 1.0
"""How long a cancelled handler may take to end."""

_TURN_S = 0.0005
"""For how long handlers begin one after another, while everything else in the event loop waits."""

_CREATE_TASK = asyncio.BaseEventLoop.create_task
"""How event loops of asyncio create tasks, unless somebody has replaced it."""


class Executor:
    """Runs each call of a handler in a task, and hands its deliveries to the settler. No call raises anything."""

    def __init__(
        self,
        routes: Mapping[str, Route],
        queue: Queue,
        marks: StartMarks,
        leases: Leases,
        settler: Settler,
        *,
        windows: Windows,
        stalls: Stalls,
        spans: HandlerSpans,
        threads: Threads,
    ) -> None:
        self._routes, self._queue, self._marks, self._leases, self._settler = routes, queue, marks, leases, settler
        self._windows, self._stalls, self._spans, self._threads = windows, stalls, spans, threads
        self._create_task = _task_creator()
        self.running: dict[HeldDelivery, asyncio.Task[None] | None] = {}
        """The calls that have not ended, by their first deliveries, with their tasks: a drain waits for these."""
        self._begun = asyncio.Event()
        """Set when something has begun, or went back."""
        self._is_cancelling = False
        self._counted = 0
        """Running calls, as metrics have them."""

    # The loops

    async def run(self) -> None:
        """Starts what has a slot, until cancelled: at once what the server counts as begun."""
        until = 0.0
        while True:
            if alone := self._queue.share():
                self._marks.share(alone)
            if started := self._queue.take():
                until = await self._start(self._marks.begin(started), until)
            else:
                await self._queue.wait()
                until = time.monotonic() + _TURN_S

    async def run_marked(self) -> None:
        """Starts the others once they are marked, until cancelled."""
        while True:
            # Without a name, which would keep the last deliveries in memory.
            await self._start(await self._marks.mark(), time.monotonic() + _TURN_S)

    async def wait(self, seconds: float) -> None:
        """Waits until something begins or goes back, but no longer than so many seconds."""
        self._begun.clear()
        await wait_at_most(self._begun, seconds)

    def count_running(self) -> None:
        """Tells metrics how many calls run."""
        running = len(self.running)
        # Several workers of a process share the gauge.
        METRICS.count("lisa_handlers_running", by=running - self._counted)
        self._counted = running if METRICS.on else 0

    async def _start(self, started: Sequence[HeldDelivery], until: float) -> float:
        """Starts calls of handlers. Returns until when others may follow before the event loop has its turn."""
        for held in started:
            self._start_call(held)
            if time.monotonic() > until:
                await asyncio.sleep(0)
                until = time.monotonic() + _TURN_S
        self._begun.set()
        return until

    def _start_call(self, held: HeldDelivery) -> None:
        """Starts a call. Where Python can, it runs at once, up to its first wait."""
        # Not with the delivery: the first of a batch may end before the call that it does not take part in.
        self.running[held] = None
        task = self._create_task(self._execute(held) if held.batch is None else self._execute_batch(held, held.batch))
        if not task.done():
            self.running[held] = task

    async def _execute(self, held: HeldDelivery) -> None:
        """Calls a handler with one delivery."""
        route, delivery = self._routes[held.delivery.topic], held.delivery
        if not self._leases.begin(held, route.leased_s):
            self._skip((held,))
            self._end(held, ())
            return
        span = self._spans.start(delivery) if self._spans.on else None
        failure: BaseException | None = None
        held.run(time.monotonic())
        try:
            if coroutine := route.coroutine:
                if (result := await coroutine(delivery)) is not None:
                    check_has_run(result, awaited=True)
            else:
                await route.call(route.decoded(delivery), self._threads)
        except BaseException as error:  # noqa: BLE001 - whatever it raised, its message is nacked, and the error logged
            self._judge(held, failure := error)
        held.finish(time.monotonic())
        if span is not None:
            self._spans.end(span, held, failure)
        # Its traceback leads back to this frame.
        failure = None
        self._end(held, (held,))

    async def _execute_batch(self, first: HeldDelivery, batch: list[HeldDelivery]) -> None:
        """Calls a handler with those of a batch whose leases last and whose bodies it can take."""
        route = self._routes[first.delivery.topic]
        begun = [held for held in batch if self._leases.begin(held, route.leased_s)]
        if len(begun) < len(batch):
            self._skip([held for held in batch if held not in begun])
        now = time.monotonic()
        for held in begun:
            held.run(now)
        if route.body is not None:
            begun = [held for held in begun if self._decode(route, held)]
        if begun:
            await self._call_with(route, begun)
        now = time.monotonic()
        for held in batch:
            if held.is_running:
                held.finish(now)
        self._end(first, [held for held in batch if held.took_s is not None])

    def _decode(self, route: Route, held: HeldDelivery) -> bool:
        """Decodes a body for a batch. Returns False if that failed, which is the outcome of this delivery alone."""
        try:
            held.delivery = route.decoded(held.delivery)
        except BaseException as error:  # noqa: BLE001 - as in `_execute`
            self._judge(held, error)
            return False
        return True

    async def _call_with(self, route: Route, batch: Sequence[HeldDelivery]) -> None:
        spans = [self._spans.start(held.delivery) for held in batch] if self._spans.on else ()
        errors: Sequence[BaseException | None] = ()
        try:
            # A list of the handler's own, which it may change.
            await route.call([held.delivery for held in batch], self._threads)
        except BaseException as error:  # noqa: BLE001 - the first delivery logs it
            errors = _errors_of_each([held.delivery for held in batch], error)
            for held, of_one in zip(batch, errors, strict=True):
                if of_one is not None:
                    self._judge(held, of_one)
        now = time.monotonic()
        for held in batch:
            held.finish(now)
        if spans:
            errors = errors or [None] * len(batch)
            for held, span, of_one in reversed(list(zip(batch, spans, errors, strict=True))):
                if span is not None:
                    self._spans.end(span, held, of_one)

    def _judge(self, held: HeldDelivery, error: BaseException) -> None:
        """Notes what an exception of a handler means for its delivery. One that cannot be read is a failure as any."""
        try:
            self._note(held, error)
        except BaseException as failure:  # noqa: BLE001 - attributes of a user's class may raise anything
            text = f"{type(error).__name__}, which cannot be read: {named_text(failure)}"
            held.outcome, held.error, held.result = Nack(held.delivery.entry, text), None, "failed"

    def _note(self, held: HeldDelivery, error: BaseException) -> None:
        raised = error.cause if isinstance(error, BatchPeerFailed) else error
        decides = deciding_error(raised)
        if (self._is_cancelling or held.is_cut) and comes_of_cancellation(raised) and not is_wish(decides):
            held.outcome, held.result = GIVE_BACK, "cancelled"
        elif isinstance(decides, asyncio.CancelledError):
            # The handler cancelled itself. That says all; elsewhere a traceback may help.
            held.outcome = Nack(held.delivery.entry, "the handler was cancelled before it ended")
            held.result = "cancelled"
        else:
            retries = self._routes[held.delivery.topic].retries
            held.outcome = outcome = outcome_of(held.delivery, raised, retries)
            held.error = decides if raised is error and all(map(is_wish, leaves(raised))) else error
            held.result = "limited" if isinstance(outcome, Postponed) else "rejected" if outcome.rejected else "failed"

    def _skip(self, skipped: Sequence[HeldDelivery]) -> None:
        """Gives back deliveries whose handlers cannot begin."""
        for held in skipped:
            why = "it was aborted" if held.is_aborted else "its lease ran out"
            text = "skipped %s: %s before its handler could begin"
            logger.warning(text, held.delivery, why, extra=delivery_event("delivery_skipped", held.delivery))
        self.give_back_each(skipped)

    def _end(self, held: HeldDelivery, handled: Sequence[HeldDelivery]) -> None:
        """Hands on the handled deliveries of a call that has ended, and frees its slot."""
        del self.running[held]
        topic = held.delivery.topic
        for each in handled:
            if each.is_aborted:
                # However it has ended: the server has settled it, and takes nothing back.
                each.outcome, each.result, each.error = GIVE_BACK, "aborted", None
        limits = [each.outcome for each in handled if each.result == "limited"]
        self._settler.put(handled, at_once=bool(limits))
        for limit in limits:
            # Before others of this topic begin.
            self._postpone(topic, limit)
        self._queue.free(topic)
        if self._stalls:
            self._stalls.end(filter(self._queue.has_slot, list(self._stalls)))

    def _postpone(self, topic: str, limit: Nack | Postponed | None) -> None:
        """Gives back what waits of a topic whose handler has to wait, to the same door."""
        if isinstance(limit, Postponed):
            if limit.here:
                self._windows.set_aside(topic, time.monotonic() + limit.delay_ms / 1000)
            self.give_back([topic], limit)

    # What does not run

    def give_back(self, topics: Collection[str] | None = None, outcome: Postponed = GIVE_BACK) -> None:
        """Gives back what waits, of these topics or of all: also what waits for its mark or to run alone."""
        starting = self._marks.clear(topics)
        waiting = self._queue.clear(topics)
        for held in starting:
            self._queue.free(held.delivery.topic)
        unbegun = [*(each for held in starting for each in held.call), *waiting]
        for held in unbegun:
            # What was to run alone may be of another topic.
            held.give_back(outcome if topics and held.delivery.topic in topics else GIVE_BACK)
        self._settler.put(unbegun, at_once=outcome is not GIVE_BACK)
        self._begun.set()

    def give_back_each(self, unbegun: Sequence[HeldDelivery]) -> None:
        """Gives back deliveries whose handlers have not begun."""
        for held in unbegun:
            held.give_back()
        self._settler.put(unbegun)

    def give_back_cancelled(self) -> None:
        """Gives back deliveries whose tasks somebody cancelled before their first step: they did nothing."""
        for held in [each for each, task in self.running.items() if task and task.done() and each.is_unbegun]:
            del self.running[held]
            self._queue.free(held.delivery.topic)
            self.give_back_each(held.call)

    def abort(self, aborted: Sequence[HeldDelivery]) -> None:
        """Cancels the calls of deliveries that an operator has aborted; those that have not begun will not begin."""
        for held in aborted:
            held.is_aborted = True
            if held.is_unbegun:
                self._leases.drop([held])
        for first, task in self.running.items():
            if task and any(each.is_aborted and not each.is_cut for each in first.call):
                for each in first.call:
                    each.is_cut = True
                task.cancel()

    async def cancel(self) -> None:
        """Gives back what waits, and cancels what runs. A handler that ignores that is left behind."""
        self._is_cancelling = True
        self.give_back()
        running = {*self.called}
        self.give_back_each([held for held in self._leases.held if held.is_unbegun and held not in running])
        if tasks := self.tasks:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=_CANCEL_S)
        self.give_back_cancelled()

    @property
    def called(self) -> list[HeldDelivery]:
        """The deliveries of the calls that have not ended."""
        return [each for first in self.running for each in first.call]

    @property
    def tasks(self) -> list["asyncio.Task[None]"]:
        """The tasks of the handlers that run."""
        return [task for task in self.running.values() if task and not task.done()]


def _errors_of_each(deliveries: Sequence[Delivery], error: BaseException) -> Sequence[BaseException | None]:
    """What an exception of a batch handler means for each delivery; None where that is handled."""
    # A user's class may raise anything where it is read. What failed may be missing, or changed: it is checked again.
    with suppress(BaseException):
        error = deciding_error(error)
        if isinstance(error, BatchFailed):
            by_place = {delivery.place: each for delivery, each in BatchFailed(error.failed).failed}
            return [by_place.get(delivery.place) for delivery in deliveries]
    return [error, *(BatchPeerFailed(error) for _ in deliveries[1:])]


def _task_creator() -> Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]:
    """How to create tasks in this event loop: eagerly if Python can, unless somebody else creates or looks at them."""
    loop = asyncio.get_running_loop()
    is_plain = getattr(loop.create_task, "__func__", None) is _CREATE_TASK and loop.get_task_factory() is None
    # The name tells the worker that a handler still runs.
    if not is_plain:
        return partial(loop.create_task, name=HANDLER)
    if sys.version_info >= (3, 12):
        return partial(asyncio.Task, loop=loop, name=HANDLER, eager_start=True)
    return partial(asyncio.Task, loop=loop, name=HANDLER)
