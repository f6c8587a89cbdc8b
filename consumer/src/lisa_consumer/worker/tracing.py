"""The spans of a worker's handlers."""

import time

from lisa_common.logs import moment
from lisa_common.model.delivery import Delivery
from lisa_common.observing import tracing
from lisa_consumer.delivery.core import Core
from lisa_consumer.metrics import METRICS
from lisa_consumer.worker.held import HeldDelivery

__all__ = ["HandlerSpans"]


class HandlerSpans:
    """Gives handlers spans, where the program traces.

    A message whose send was recorded always has one, if the program's sampler takes it. Others have at most
    `most_per_s` a second: asking a sampler takes a fifth of the time of all other work on a message.
    """

    def __init__(self, core: Core, most_per_s: int) -> None:
        self._tracing = tracing.ask()
        METRICS.ask()
        self.on = self._tracing is not None
        """Whether the program traces."""
        self._core = core
        self._group = core.group
        self._most_per_s = most_per_s
        self._left = 0
        self._second = 0

    def start(self, delivery: Delivery) -> tracing.Process | None:
        """Starts the span of a delivery and makes it the current one until `end`; None if it has none."""
        if self._tracing is None or not ("traceparent" in delivery.headers or self._take()):
            return None
        process = self._tracing.start_process(delivery.topic, self._group, delivery.headers)
        span = process.span
        if self._tracing.is_recording(span):
            lag_ms = max(0.0, time.time() * 1000 + self._core.ahead_ms - delivery.due_ms)
            attributes: dict[str, str | int] = {
                "messaging.message.id": delivery.id,
                "lisa.due": moment(delivery.due_ms),
                "lisa.lag_ms": round(lag_ms),
                "lisa.attempt": delivery.attempt,
            }
            if delivery.shard:
                attributes["messaging.destination.partition.id"] = delivery.shard
            self._tracing.describe(span, attributes)
            if trace_id := self._tracing.trace_id(span):
                METRICS.exemplify("lisa_delivery_lag_seconds", lag_ms / 1000, trace_id, delivery.topic, self._group)
        return process

    def end(self, process: tracing.Process, held: HeldDelivery, error: BaseException | None) -> None:
        """Ends the span of a delivery whose handler has ended, and what it raised; the last that was started first."""
        if self._tracing is None:
            return
        self._tracing.end_process(process, error)
        if trace_id := self._tracing.trace_id(process.span):
            topic, took_s = held.delivery.topic, held.took_s or 0.0
            METRICS.exemplify("lisa_handler_seconds", took_s, trace_id, topic, self._group, held.result)

    def _take(self) -> bool:
        """Takes one of this second's spans, if any is left."""
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._left = second, self._most_per_s
        self._left -= 1
        return self._left >= 0
