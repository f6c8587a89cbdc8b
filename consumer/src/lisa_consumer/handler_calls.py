"""Calls of handlers, measured and traced, and what each of them means for its deliveries."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from typing import Any

from lisa_common.model.delivery import Delivery
from lisa_common.protocol.consuming import Nack, Postponed
from lisa_consumer.core import Core
from lisa_consumer.gathering import BatchFailed, Member, OfBatch
from lisa_consumer.handled import Handled
from lisa_consumer.handler import Route, outcome_of
from lisa_consumer.metrics import METRICS, HandlerTimes
from lisa_consumer.prefetch import PrefetchWindow
from lisa_consumer.tracing import HandlerSpans

__all__ = ["HandlerCalls", "cancelled"]


class HandlerCalls:
    """Calls handlers. No call raises: whatever a handler raises decides about its deliveries."""

    def __init__(
        self, core: Core, windows: Mapping[str, PrefetchWindow], threads: Executor, *, spans_per_s: int
    ) -> None:
        self._windows = windows
        self._threads = threads
        self._spans = HandlerSpans(core, spans_per_s)
        self.times = HandlerTimes(core.group)

    async def one(self, route: Route, delivery: Delivery) -> Handled:
        """Calls a handler with one delivery."""
        span = self._spans.start(delivery) if self._spans.on else None
        began = time.monotonic()
        try:
            if coroutine := route.coroutine:
                await coroutine(delivery)
            else:
                await route.call(route.decoded(delivery), self._threads)
        except BaseException as error:  # noqa: BLE001 - whatever it raised, its message is nacked and the error logged
            return self._failed(delivery, time.monotonic() - began, span, error)
        return self._done(delivery, time.monotonic() - began, span)

    async def batch(self, route: Route, members: Sequence[Member]) -> list[Handled]:
        """Calls a handler with a batch, whose deliveries are decoded."""
        deliveries = [member.delivery for member in members]
        spans = [self._spans.start(delivery) for delivery in deliveries] if self._spans.on else [None] * len(members)
        errors: Sequence[BaseException | None] = [None] * len(members)
        try:
            await route.call(deliveries, self._threads)
        except asyncio.CancelledError as error:
            errors = [error] * len(members)
        except BatchFailed as failed:
            by_place = {delivery.place: error for delivery, error in failed.failed}
            errors = [by_place.get(delivery.place) for delivery in deliveries]
        except BaseException as error:  # noqa: BLE001 - the first delivery logs it
            errors = [error, *(OfBatch(error) for _ in deliveries[1:])]
        ended = time.monotonic()
        each = zip(members, spans, errors, strict=True)
        return [
            self._done(delivery, ended - began, span)
            if error is None
            else self._failed(delivery, ended - began, span, error)
            for (delivery, began), span, error in each
        ]

    def _failed(self, delivery: Delivery, took_s: float, span: Any, error: BaseException) -> Handled:
        outcome: Nack | Postponed
        if isinstance(error, asyncio.CancelledError):
            # The drain cancelled the handler, or the handler itself did: either way it did not finish.
            outcome, result = cancelled(delivery), "cancelled"
        else:
            outcome = outcome_of(delivery, error)
            result = "limited" if isinstance(outcome, Postponed) else "rejected" if outcome.rejected else "failed"
        self._observe(delivery, took_s, span, result, error)
        # That it was cancelled says all; a traceback would only show where.
        return Handled(delivery, outcome, None if result == "cancelled" else error)

    def _done(self, delivery: Delivery, took_s: float, span: Any) -> Handled:
        self._observe(delivery, took_s, span, "ok", None)
        return Handled(delivery)

    def _observe(self, delivery: Delivery, took_s: float, span: Any, result: str, error: BaseException | None) -> None:
        self._windows[delivery.topic].observe(took_s)
        if METRICS.on:
            self.times.add(delivery.topic, result, took_s)
        if span is not None:
            self._spans.end(span, delivery, result, took_s, error)


def cancelled(delivery: Delivery) -> Nack:
    """The nack of a delivery whose handler was cancelled, or did not begin any more."""
    return Nack(delivery.entry, "the handler was cancelled before it ended")
