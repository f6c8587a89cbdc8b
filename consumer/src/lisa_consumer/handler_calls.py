"""Calls of handlers, measured and traced, and what each of them means for its deliveries."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from typing import Any

from lisa_common.model.delivery import Delivery
from lisa_common.protocol.consuming import Nack, Postponed
from lisa_consumer.core import Core
from lisa_consumer.gathering import BatchFailed, OfBatch
from lisa_consumer.handler import Route, outcome_of
from lisa_consumer.held_delivery import HeldDelivery
from lisa_consumer.metrics import METRICS, HandlerTimes
from lisa_consumer.prefetch import PrefetchWindow
from lisa_consumer.tracing import HandlerSpans

__all__ = ["HandlerCalls", "cancelled"]


class HandlerCalls:
    """Calls handlers, and notes the outcome of each delivery. No call raises, whatever its handler raises."""

    def __init__(
        self, core: Core, windows: Mapping[str, PrefetchWindow], threads: Executor, *, spans_per_s: int
    ) -> None:
        self._windows = windows
        self._threads = threads
        self._spans = HandlerSpans(core, spans_per_s)
        self.times = HandlerTimes(core.group)

    async def one(self, route: Route, held: HeldDelivery) -> None:
        """Calls a handler with one delivery."""
        delivery = held.delivery
        span = self._spans.start(delivery) if self._spans.on else None
        began = time.monotonic()
        try:
            if coroutine := route.coroutine:
                await coroutine(delivery)
            else:
                await route.call(route.decoded(delivery), self._threads)
        except BaseException as error:  # noqa: BLE001 - whatever it raised, its message is nacked and the error logged
            self._fail(held, time.monotonic() - began, span, error)
        else:
            self._observe(delivery, time.monotonic() - began, span, "ok", None)

    async def batch(self, route: Route, batch: Sequence[HeldDelivery]) -> None:
        """Calls a handler with a batch, whose deliveries are decoded."""
        deliveries = [held.delivery for held in batch]
        spans = [self._spans.start(delivery) for delivery in deliveries] if self._spans.on else [None] * len(batch)
        errors: Sequence[BaseException | None] = [None] * len(batch)
        try:
            await route.call(deliveries, self._threads)
        except asyncio.CancelledError as error:
            errors = [error] * len(batch)
        except BatchFailed as failed:
            by_place = {delivery.place: error for delivery, error in failed.failed}
            errors = [by_place.get(delivery.place) for delivery in deliveries]
        except BaseException as error:  # noqa: BLE001 - the first delivery logs it
            errors = [error, *(OfBatch(error) for _ in deliveries[1:])]
        ended = time.monotonic()
        for held, span, raised in zip(batch, spans, errors, strict=True):
            if raised is None:
                self._observe(held.delivery, ended - held.gathered_at, span, "ok", None)
            else:
                self._fail(held, ended - held.gathered_at, span, raised)

    def _fail(self, held: HeldDelivery, took_s: float, span: Any, error: BaseException) -> None:
        if isinstance(error, asyncio.CancelledError):
            # The drain cancelled the handler, or the handler itself did: either way it did not finish.
            held.outcome, result = cancelled(held.delivery), "cancelled"
        else:
            held.outcome = outcome = outcome_of(held.delivery, error)
            # That a handler was cancelled says all; here a traceback may help.
            held.error = error
            result = "limited" if isinstance(outcome, Postponed) else "rejected" if outcome.rejected else "failed"
        self._observe(held.delivery, took_s, span, result, error)

    def _observe(self, delivery: Delivery, took_s: float, span: Any, result: str, error: BaseException | None) -> None:
        self._windows[delivery.topic].observe(took_s)
        if METRICS.on:
            self.times.add(delivery.topic, result, took_s)
        if span is not None:
            self._spans.end(span, delivery, result, took_s, error)


def cancelled(delivery: Delivery) -> Nack:
    """The nack of a delivery whose handler was cancelled, or did not begin any more."""
    return Nack(delivery.entry, "the handler was cancelled before it ended")
