"""Spans by the OpenTelemetry API, by its semantic conventions for messaging, version 1.44.

A send has a span, whose context travels in the message's headers. A message that is handled has a span in a trace of
its own, which links to that context: a message may wait for days, too long for one trace.
"""

import logging
import os
import sys
from collections.abc import Mapping
from importlib.metadata import version
from types import TracebackType
from typing import Any, Final, NamedTuple

from lisa_common.escaping import safe_text
from lisa_common.logs import event

__all__ = ["CONTEXT_HEADERS", "Process", "Tracing", "ask"]

CONTEXT_HEADERS: Final = ("traceparent", "tracestate")
"""Headers of a message that carry the context of its send."""

logger = logging.getLogger(__name__)

_SCHEMA = "https://opentelemetry.io/schemas/1.44.0"


def ask() -> "Tracing | None":
    """Tracing, if a provider is set up now: a program that wants spans sets it up first.

    Costs next to nothing if the program does not use OpenTelemetry.
    """
    if "opentelemetry.trace" not in sys.modules and "OTEL_PYTHON_TRACER_PROVIDER" not in os.environ:
        return None
    try:
        from opentelemetry import trace  # noqa: PLC0415 - an extra
    except ModuleNotFoundError:
        return None
    with _Guard():
        provider = trace.get_tracer_provider()
        if isinstance(provider, (trace.ProxyTracerProvider, trace.NoOpTracerProvider)):
            return None
        return Tracing(provider.get_tracer("lisa", version("lisa-common"), schema_url=_SCHEMA))
    return None


class Process(NamedTuple):
    """The span of a handler, and the token of the context that it has replaced."""

    span: Any
    replaced: Any


class Tracing:
    """Starts and ends spans. Raises nothing: a sampler or span processor that fails must not stop a message."""

    def __init__(self, tracer: Any) -> None:
        from opentelemetry import context, trace  # noqa: PLC0415 - an extra
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

        self._tracer = tracer
        self._trace = trace
        self._attach, self._detach = context.attach, context.detach
        self._empty = context.Context()
        self._propagator = TraceContextTextMapPropagator()
        self._guarded = _Guard()

    def start_send(self, topic: str, *, batch: bool = False) -> Any:
        """Starts the span of a send, below the caller's span; a batch has one for all of its messages."""
        kind = self._trace.SpanKind.CLIENT if batch else self._trace.SpanKind.PRODUCER
        return self._start(f"send {topic}", kind=kind, attributes=_attributes("send", topic))

    def context_of(self, span: Any) -> dict[str, str]:
        """The headers that carry the context of a span; none unless it is recording."""
        with self._guarded:
            carrier: dict[str, str] = {}
            if span.is_recording():
                self._propagator.inject(carrier, self._trace.set_span_in_context(span, self._empty))
            return carrier
        return {}

    def is_recording(self, span: Any) -> bool:
        """Whether a span keeps attributes."""
        with self._guarded:
            return bool(span.is_recording())
        return False

    def describe(self, span: Any, attributes: Mapping[str, str | int]) -> None:
        """Sets attributes of a span that is recording."""
        with self._guarded:
            span.set_attributes(attributes)

    def start_process(self, topic: str, group: str, headers: Mapping[str, str]) -> Process:
        """Starts the span of a handler, in a new trace that links to the send's, and makes it the current one.

        Call `end_process` in the same task; of several the one that was started last comes first.
        """
        links = None
        if "traceparent" in headers:
            sent = self._trace.get_current_span(self._propagator.extract(headers, self._empty)).get_span_context()
            links = [self._trace.Link(sent)] if sent.is_valid else None
        span = self._start(
            f"process {topic}",
            self._empty,
            self._trace.SpanKind.CONSUMER,
            _attributes("process", topic) | {"messaging.consumer.group.name": group},
            links,
        )
        return Process(span, self._attach(self._trace.set_span_in_context(span)))

    def end_process(self, process: Process, error: BaseException | None) -> None:
        """Ends the span of a handler; the one before is the current one again."""
        # A task that is destroyed before it ends closes its handler in another context.
        if type(error) is not GeneratorExit:
            self._detach(process.replaced)
        self.end(process.span, error)

    def end(self, span: Any, error: BaseException | None = None) -> None:
        """Ends a span, as failed if there is an error."""
        with self._guarded:
            if error is not None and span.is_recording():
                span.set_attribute("error.type", type(error).__qualname__)
                span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, safe_text(error)))
        with self._guarded:
            span.end()

    def _start(self, *arguments: Any, **named: Any) -> Any:
        with self._guarded:
            return self._tracer.start_span(*arguments, **named)
        return self._trace.INVALID_SPAN

    def trace_id(self, span: Any) -> str:
        """The id of the trace of a sampled span; "" for another."""
        with self._guarded:
            context = span.get_span_context()
            return f"{context.trace_id:032x}" if context.trace_flags.sampled else ""
        return ""


class _Guard:
    """Suppresses and logs what a sampler, a span or a span processor of the program raises; the first as a warning."""

    def __init__(self) -> None:
        self._level = logging.WARNING

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if kind is None or not isinstance(failure, Exception):
            return False
        error = safe_text(failure)
        text = "the program's tracing failed, and messages go on without it: %s"
        # As a triple, which is true even if the exception is not.
        logger.log(
            self._level, text, error, exc_info=(kind, failure, trace), extra=event("tracing_failed", error=error)
        )
        # There may be one for each message.
        self._level = logging.DEBUG
        return True


def _attributes(operation: str, topic: str) -> dict[str, str]:
    return {
        "messaging.system": "lisa",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": topic,
    }
