"""Metrics and spans of sends, around the flows that send, without I/O."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from lisa_common.errors import LisaError
from lisa_common.logs import moment
from lisa_common.observing.tracing import Tracing
from lisa_common.validation import duration_ms
from lisa_producer.message import Message
from lisa_producer.metrics import METRICS, count_sent, note_send
from lisa_producer.results import BatchResults, SendOutcome, SendResult
from lisa_producer.shared_flow import SharedFlow

__all__ = ["BatchObserver", "observed_send"]

Context = Mapping[str, str] | None
"""Headers that carry the context of a send's span."""


def observed_send(
    tracing: Tracing | None, topic: str, message: Message, send: Callable[[Context], SharedFlow[SendResult]]
) -> SharedFlow[SendResult]:
    """Sends one message by the flow that `send` returns for a context; counts and traces it."""
    began = time.monotonic()
    span = tracing.start_send(topic) if tracing else None
    failure: BaseException | None = None
    outcome: SendOutcome | None = None
    try:
        result = yield from send(tracing.context_of(span) if tracing else None)
    except LisaError as error:
        failure, outcome = error, SendOutcome.FAILED
        raise
    except BaseException as error:
        failure = error
        raise
    else:
        outcome = result.outcome
        if tracing and tracing.is_recording(span):
            tracing.describe(span, _attributes(message, result))
        return result
    finally:
        note_send(topic, outcome, time.monotonic() - began)
        if tracing:
            tracing.end(span, failure)


def _attributes(message: Message, result: SendResult) -> dict[str, str | int]:
    attributes: dict[str, str | int] = {"messaging.message.id": str(result.id)}
    if result.due_ms:
        attributes["lisa.due"] = moment(result.due_ms)
    if message.delay is not None:
        attributes["lisa.delay_ms"] = duration_ms("delay", message.delay)
    return attributes


class BatchObserver:
    """Counts and traces the batches of one send of many messages. A batch's span begins with its first message."""

    def __init__(self, tracing: Tracing | None, topic: str) -> None:
        self._tracing = tracing
        self._topic = topic
        self._span: Any = None
        self._context: Context = None

    def context(self) -> Context:
        """The headers for the next message."""
        if self._tracing and self._span is None:
            self._span = self._tracing.start_send(self._topic, batch=True)
            self._context = self._tracing.context_of(self._span)
        return self._context

    def take_span(self) -> Any:
        """The span of the batch, None without one; the next message begins another batch."""
        span, self._span = self._span, None
        return span

    def end(self, span: Any, results: BatchResults, took_s: float, error: LisaError | None) -> None:
        """Takes the results of a batch, and the error that ends the whole send, if any."""
        if METRICS.on and results:
            for outcome, count in results.outcomes().items():
                count_sent(self._topic, outcome, count)
            METRICS.observe("lisa_send_seconds", [took_s])
        if self._tracing and span is not None:
            self._tracing.describe(span, {"messaging.batch.message_count": len(results)})
            self._tracing.end(span, error)

    def abandon(self, span: Any, error: BaseException | None) -> None:
        """Ends the span of a batch of which nobody will have results; `error` is why."""
        if self._tracing and span is not None:
            self._tracing.end(span, error)
