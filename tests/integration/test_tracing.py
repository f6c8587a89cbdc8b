"""Spans of sends and handlers, by a real SDK that keeps them in memory."""

from collections.abc import Callable, Iterator
from contextvars import copy_context
from typing import Any
from unittest.mock import patch

import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler
from opentelemetry.trace import SpanKind, StatusCode
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.exposition import generate_latest

from lisa_common.model.delivery import Entry
from lisa_common.model.policy import Policy
from lisa_common.observing import meters
from lisa_consumer import Delivery, Reject, Retry, metrics as consumer_metrics
from lisa_consumer.delivery.core import Core
from lisa_consumer.worker.held import HeldDelivery
from lisa_consumer.worker.tracing import HandlerSpans
from lisa_producer import InvalidInput, Message, metrics as producer_metrics
from support import wait_until_async
from support.running import managed, new_worker, working

Producers = Callable[..., Any]

_W3C = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class _Spans:
    """A provider in place of the process', for one test."""

    def __init__(self, sampler: Sampler = ALWAYS_ON) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler=sampler)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def ended(self, name: str) -> list[ReadableSpan]:
        """The ended spans of a name."""
        return [span for span in self._exporter.get_finished_spans() if span.name == name]


def _header(span: ReadableSpan) -> str:
    context = span.context
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def _held(id: str) -> HeldDelivery:
    return HeldDelivery(Delivery("orders", "billing", id, b"", {}, 1, 0, 0, Entry("0-1")), 0.0)


@pytest.fixture
def spans() -> Iterator[_Spans]:
    """All spans are sampled."""
    kept = _Spans()
    with patch.object(trace, "get_tracer_provider", lambda: kept.provider):
        yield kept


@pytest.fixture(autouse=True)
def _declared(declare: Callable[..., Policy]) -> None:
    declare(max_retries=1, backoff="fixed", backoff_base_ms=10)


@pytest.fixture
def handled(redis_url: str, prefix: str) -> Callable[..., Any]:
    """Runs a worker, beside a manager, with a handler until it has had so many deliveries."""

    async def run(count: int, handler: Callable[[Delivery], object] = id, **settings: Any) -> list[Delivery]:
        worker, deliveries = new_worker(redis_url, prefix, **settings), list[Delivery]()

        @worker.on("orders")
        async def handle(delivery: Delivery) -> None:
            deliveries.append(delivery)
            handler(delivery)

        async with managed(redis_url, prefix), working(worker):
            await wait_until_async(lambda: len(deliveries) >= count, 20)
        return deliveries

    return run


async def test_a_message_carries_its_sends_context(spans: _Spans, producers: Producers, handled: Any) -> None:
    """The handler's span begins a trace of its own, with a link to the send's, and is current in the handler."""
    await producers().send("orders", b"x", delay=0.05, headers={"mine": "kept"}, id="one")
    current: list[int] = []
    [delivery] = await handled(1, lambda _: current.append(trace.get_current_span().get_span_context().span_id))
    [send], [process] = spans.ended("send orders"), spans.ended("process orders")
    assert delivery.headers == {
        "mine": "kept",
        "traceparent": _header(send),
    }
    assert (send.kind, process.kind, process.parent) == (SpanKind.PRODUCER, SpanKind.CONSUMER, None)
    assert process.context.trace_id != send.context.trace_id
    assert [link.context.span_id for link in process.links] == [send.context.span_id]
    assert current == [process.context.span_id]
    common = {"messaging.system": "lisa", "messaging.destination.name": "orders", "messaging.message.id": "one"}
    sent, attributes = dict(send.attributes or {}), dict(process.attributes or {})
    assert common.items() <= sent.items()
    assert common.items() <= attributes.items()
    assert sent["lisa.delay_ms"] == 50
    assert sent["messaging.operation.type"] == "send"
    assert attributes["messaging.operation.type"] == "process"
    assert attributes["messaging.consumer.group.name"] == "billing"
    assert attributes["lisa.attempt"] == 1
    assert 0 <= attributes["lisa.lag_ms"] < 20_000
    assert attributes["lisa.due"] == sent["lisa.due"]


async def test_a_span_is_current_in_its_handler_only(spans: _Spans, producers: Producers, handled: Any) -> None:
    """Of many that begin together, each has its own."""
    await producers().send_many("orders", [Message(body=b"x") for _ in range(100)])
    current = list[int]()
    await handled(100, lambda _: current.append(trace.get_current_span().get_span_context().span_id), concurrency=100)
    assert sorted(current) == sorted(span.context.span_id for span in spans.ended("process orders"))


@pytest.mark.usefixtures("spans")
def test_the_spans_of_a_batch_leave_nothing_behind() -> None:
    """Of those that were started one after the other, the last one ends first."""
    of_handlers, before = HandlerSpans(Core("lisa", "billing"), 200), copy_context()
    batch = [_held(id) for id in ("a", "b", "c")]
    started = [of_handlers.start(held.delivery) for held in batch]
    assert len(copy_context()) > len(before)
    for held, process in reversed([*zip(batch, started, strict=True)]):
        assert process
        of_handlers.end(process, held, None)
    assert copy_context() == before


def test_a_handler_that_is_destroyed_ends_its_span(spans: _Spans, caplog: pytest.LogCaptureFixture) -> None:
    """It is closed in another context, of which nothing is detached."""
    of_handlers = HandlerSpans(Core("lisa", "billing"), 200)
    held = _held("a")
    process = copy_context().run(of_handlers.start, held.delivery)
    assert process
    of_handlers.end(process, held, GeneratorExit())
    assert len(spans.ended("process orders")) == 1
    assert not caplog.records


async def test_retries_link_to_the_same_send(spans: _Spans, producers: Producers, handled: Any) -> None:
    """Each attempt is a span; one that fails says so."""
    await producers().send("orders", b"x")

    def fail(delivery: Delivery) -> None:
        raise Reject("no") if delivery.attempt > 1 else Retry("later")

    await handled(2, fail)
    [send], attempts = spans.ended("send orders"), spans.ended("process orders")
    assert [dict(span.attributes or {})["lisa.attempt"] for span in attempts] == [1, 2]
    assert [dict(span.attributes or {})["error.type"] for span in attempts] == ["Retry", "Reject"]
    assert {span.status.status_code for span in attempts} == {StatusCode.ERROR}
    assert {link.context.span_id for span in attempts for link in span.links} == {send.context.span_id}


async def test_a_batch_has_one_span(spans: _Spans, producers: Producers, handled: Any) -> None:
    """All its messages carry that one's context, unless the caller set one; a send below a span is its child."""
    with trace.use_span(spans.provider.get_tracer("app").start_span("request"), end_on_exit=True) as request:
        await producers().send_many(
            "orders", [Message(body=b"x"), Message(body=b"y", headers={"traceparent": _W3C}), Message(body=b"z")]
        )
    [send] = spans.ended("send orders")
    deliveries = await handled(3)
    assert send.kind is SpanKind.CLIENT
    assert dict(send.attributes or {})["messaging.batch.message_count"] == 3
    assert send.parent is not None
    assert send.parent.span_id == request.get_span_context().span_id
    own = _header(send)
    assert {d.body: d.headers["traceparent"] for d in deliveries} == {b"x": own, b"y": _W3C, b"z": own}


async def test_full_headers_and_failed_sends(spans: _Spans, producers: Producers, handled: Any) -> None:
    """Where the headers have no room for the context, the message goes without; a refused send fails its span."""
    producer = producers()
    headers = {"h": "x" * 16_370}
    await producer.send("orders", b"x", headers=headers)
    with pytest.raises(InvalidInput):
        await producer.send("orders", b"x", delay=-1)
    [delivery] = await handled(1)
    assert delivery.headers == headers
    assert [dict(span.attributes or {}).get("error.type") for span in spans.ended("send orders")] == [
        None,
        "InvalidInput",
    ]


async def test_what_is_not_sampled_costs_no_bytes(producers: Producers, handled: Any) -> None:
    """An unsampled send adds no header; without a provider nothing does."""
    unsampled = _Spans(ALWAYS_OFF)
    with patch.object(trace, "get_tracer_provider", lambda: unsampled.provider):
        await producers().send("orders", b"x")
        [delivery] = await handled(1)
    await producers().send("orders", b"y")
    [other] = await handled(1)
    assert delivery.headers == other.headers == {}


async def test_spans_without_a_traced_send_are_limited(spans: _Spans, producers: Producers, handled: Any) -> None:
    """As many a second as the settings say: none with 0. A damaged context counts as one, and links to nothing."""
    with patch.object(trace, "get_tracer_provider", trace.ProxyTracerProvider):
        await producers().send_many("orders", [Message(body=b"x") for _ in range(20)])
        await producers().send("orders", b"x", headers={"traceparent": "nonsense"})
    await handled(21, spans_per_s=0)
    [span] = spans.ended("process orders")
    assert not span.links


async def test_exemplars_lead_to_the_handlers_trace(spans: _Spans, producers: Producers, handled: Any) -> None:
    """Of both lag and handler histograms, in the OpenMetrics format."""
    registry = CollectorRegistry()
    consumer_metrics.register(registry)
    try:
        await producers().send("orders", b"x")
        await handled(1)
    finally:
        consumer_metrics.METRICS.on = False
    [span] = spans.ended("process orders")
    text = generate_latest(registry).decode()
    for name in ("lisa_delivery_lag_seconds_bucket", "lisa_handler_seconds_bucket"):
        lines = [line for line in text.splitlines() if line.startswith(name) and " # " in line]
        assert any(f'trace_id="{span.context.trace_id:032x}"' in line for line in lines), text


async def test_meters_count_what_the_conventions_name(
    producers: Producers, handled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sent, consumed, and how long sends and handlers took, by a provider that was set up before; beside a registry."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    for of in (producer_metrics, consumer_metrics):
        # What the process has counted before belongs to no test.
        monkeypatch.setattr(of.METRICS, "_meters", None)
        monkeypatch.setattr(of.METRICS, "on", of.METRICS.on)
    registry = CollectorRegistry()
    consumer_metrics.register(registry)
    place = {"topic": "orders", "group": "billing", "attempt": "first"}
    before = registry.get_sample_value("lisa_deliveries_total", place) or 0
    with patch.object(metrics, "get_meter_provider", lambda: provider):
        producer = producers()
        await producer.send("orders", b"x", id="one")
        await producer.send("orders", b"x", id="one")
        await producer.send_many("orders", [Message(body=b"y")] * 3)
        with pytest.raises(InvalidInput):
            await producer.send("orders", b"x", delay=-1)

        def fail(delivery: Delivery) -> None:
            if delivery.id == "one":
                raise Reject("no")

        await handled(4, fail)
    points = {
        (metric.name, (point.attributes or {}).get("error.type")): point
        for resource in reader.get_metrics_data().resource_metrics  # type: ignore[union-attr]
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    }
    values = {key: getattr(point, "value", None) or point.count for key, point in points.items()}
    assert values == {
        ("messaging.client.sent.messages", None): 5,
        ("messaging.client.sent.messages", "failed"): 1,
        ("messaging.client.operation.duration", None): 4,
        ("messaging.client.consumed.messages", None): 4,
        ("messaging.process.duration", None): 3,
        ("messaging.process.duration", "rejected"): 1,
    }
    assert dict(points["messaging.process.duration", None].attributes or {}) == {
        "messaging.system": "lisa",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "orders",
        "messaging.consumer.group.name": "billing",
    }
    assert registry.get_sample_value("lisa_deliveries_total", place) == before + 4


def test_a_program_without_a_meter_provider_counts_nothing() -> None:
    """The API's own provider does nothing, so nothing is counted for it."""
    assert meters.ask() is None
