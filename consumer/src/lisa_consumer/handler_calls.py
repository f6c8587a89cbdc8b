"""Calls of handlers, timed and traced, and what each of them means for its deliveries."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress

from lisa_common.model.delivery import Delivery
from lisa_common.protocol.consuming import Nack, Postponed
from lisa_consumer.core import Core
from lisa_consumer.error_details import comes_of_cancellation, leaves
from lisa_consumer.gathering import BatchFailed, OfBatch
from lisa_consumer.handler import Route, deciding_error, is_wish, outcome_of
from lisa_consumer.held_delivery import HeldDelivery
from lisa_consumer.leases import Leases
from lisa_consumer.metrics import METRICS, HandlerTimes
from lisa_consumer.middleware import check_has_run
from lisa_consumer.prefetch import PrefetchWindow
from lisa_consumer.tracing import HandlerSpans

__all__ = ["GIVEN_BACK", "HandlerCalls"]

GIVEN_BACK = Postponed(0, here=True)
"""The outcome of a delivery that the worker itself has cut short: it spends no attempt."""


class HandlerCalls:
    """Calls handlers, and notes the outcome of each delivery. No call raises, whatever its handler raises.

    A delivery whose lease has run out is not handled: `skip` takes it at once. In any case `end` takes it last.
    """

    def __init__(
        self,
        core: Core,
        windows: Mapping[str, PrefetchWindow],
        leases: Leases,
        threads: Executor,
        *,
        spans_per_s: int,
        skip: Callable[[Sequence[HeldDelivery]], None],
        end: Callable[[Sequence[HeldDelivery]], None],
    ) -> None:
        self._windows = windows
        self._threads = threads
        self._leases = leases
        self._skip, self._end = skip, end
        self._spans = HandlerSpans(core, spans_per_s)
        self.times = HandlerTimes(core.group)
        self.is_cancelling = False
        """Whether the worker cancels its handlers, as its drain has ended."""

    async def one(self, route: Route, held: HeldDelivery) -> None:
        """Calls a handler with one delivery."""
        try:
            if not self._leases.begin(held, route.timeout_s):
                self._skip((held,))
                return
            delivery = held.delivery
            span = self._spans.start(delivery) if self._spans.on else None
            began = time.monotonic()
            try:
                if coroutine := route.coroutine:
                    if (result := await coroutine(delivery)) is not None:
                        check_has_run(result, awaited=True)
                else:
                    await route.call(route.decoded(delivery), self._threads)
            except BaseException as error:  # noqa: BLE001 - whatever it raised, its message is nacked, and the error logged
                took_s = time.monotonic() - began
                self._fail(held, error)
                held.took_s = took_s
                if span is not None:
                    self._spans.end(span, held, error)
            else:
                held.took_s = time.monotonic() - began
                if span is not None:
                    self._spans.end(span, held, None)
        finally:
            self._end((held,))

    async def batch(self, route: Route, batch: Sequence[HeldDelivery]) -> None:
        """Calls a handler with a batch, whose deliveries are decoded."""
        try:
            begun = self._leases.begin_all(batch, route.timeout_s)
            if len(begun) < len(batch):
                self._skip([held for held in batch if held not in begun])
            if begun:
                await self._call_with(route, begun)
        finally:
            self._end(batch)

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
                    self._fail(held, of_one)
        ended = time.monotonic()
        for held in batch:
            held.took_s = ended - held.gathered_at
        if spans:
            errors = errors or [None] * len(batch)
            for held, span, of_one in reversed(list(zip(batch, spans, errors, strict=True))):
                if span is not None:
                    self._spans.end(span, held, of_one)

    def _fail(self, held: HeldDelivery, error: BaseException) -> None:
        """Notes what an exception of a handler means for its delivery."""
        raised = error.cause if isinstance(error, OfBatch) else error
        decides = deciding_error(raised)
        if self.is_cancelling and comes_of_cancellation(raised) and not is_wish(decides):
            held.outcome, held.result = GIVEN_BACK, "cancelled"
        elif isinstance(decides, asyncio.CancelledError):
            # The handler cancelled itself. That says all; elsewhere a traceback may help.
            held.outcome = Nack(held.delivery.entry, "the handler was cancelled before it ended")
            held.result = "cancelled"
        else:
            held.outcome = outcome = outcome_of(held.delivery, raised)
            held.error = decides if raised is error and all(map(is_wish, leaves(raised))) else error
            held.result = "limited" if isinstance(outcome, Postponed) else "rejected" if outcome.rejected else "failed"

    def observe(self, handled: Sequence[HeldDelivery]) -> None:
        """Adds the times of handlers that have ended to the averages of their topics, and to the metrics."""
        times = defaultdict[tuple[str, str], list[float]](list)
        for held in handled:
            times[held.delivery.topic, held.result].append(held.took_s or 0.0)
        of_topics = defaultdict[str, list[float]](list)
        for (topic, outcome), durations in times.items():
            if outcome != "limited":
                # That says nothing of the time that a message takes: the window must not grow by it.
                of_topics[topic] += durations
            if METRICS.on:
                self.times.add(topic, outcome, durations)
        # Once for each topic: a window compares these times with what has passed since its last call.
        for topic, durations in of_topics.items():
            self._windows[topic].observe(durations)


def _errors_of_each(deliveries: Sequence[Delivery], error: BaseException) -> Sequence[BaseException | None]:
    """What an exception of a batch handler means for each delivery; None where that is handled."""
    error = deciding_error(error)
    if isinstance(error, BatchFailed):
        # A user's subclass may lack what failed, and a handler may have changed it: so it is checked again.
        with suppress(BaseException):
            by_place = {delivery.place: each for delivery, each in BatchFailed(error.failed).failed}
            return [by_place.get(delivery.place) for delivery in deliveries]
    return [error, *(OfBatch(error) for _ in deliveries[1:])]
