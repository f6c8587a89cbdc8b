"""Handlers and tracing that fail together: each message is settled all the same."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any
from unittest.mock import patch

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from lisa_common.client.async_tasks import cancel_all
from lisa_common.model.policy import Policy
from lisa_consumer import Delivery
from lisa_producer import AsyncProducer, Message, Producer, ProducerSettings
from support import Server, wait_until_async
from support.running import managed, new_worker, working
from support.unspeakable import Unspeakable

BATCH = [Message(body=b"x", id=str(n)) for n in range(20)]


class _Broken(SpanProcessor):
    def __init__(self, at: str) -> None:
        self._at = at

    def on_start(self, *_: object, **__: object) -> None:
        if self._at == "start":
            raise ValueError("sampler")

    def on_end(self, *_: object) -> None:
        if self._at == "end":
            raise RuntimeError("exporter")


class _Unclassed(Unspeakable):
    @property
    def __class__(self) -> Any:
        raise RuntimeError("no class")


@pytest.fixture
def provider() -> Iterator[TracerProvider]:
    """The process' provider, for one test."""
    made = TracerProvider()
    with patch.object(trace, "get_tracer_provider", lambda: made):
        yield made


@pytest.fixture(autouse=True)
def _declared(declare: Callable[..., Policy]) -> None:
    declare(max_retries=1, backoff="fixed", backoff_base_ms=10, visibility_ms=600_000)


@pytest.mark.parametrize("batch", [False, True], ids=["single", "batch"])
async def test_an_error_without_text_fails_its_messages_at_once(
    provider: TracerProvider, redis_url: str, prefix: str, producers: Callable[..., Any], *, batch: bool
) -> None:
    """Each is retried, long before its lease ends, and its span says that it failed."""
    exporter, attempts = InMemorySpanExporter(), Counter[int]()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    worker = new_worker(redis_url, prefix)
    _handle(worker, attempts, batch=batch)
    await producers().send_many("orders", BATCH)
    async with managed(redis_url, prefix), working(worker):
        await wait_until_async(lambda: attempts == {1: 20, 2: 20})
    failed = [span for span in exporter.get_finished_spans() if (span.attributes or {}).get("error.type")]
    assert len(failed) == 20
    said = "no text, as the __str__ of _Unclassed raised SystemExit"
    assert Counter((span.attributes or {})["error.type"] for span in failed)["_Unclassed"] >= 1
    assert any(said in str(span.status.description) for span in failed)


@pytest.mark.parametrize("batch", [False, True], ids=["single", "batch"])
@pytest.mark.parametrize("at", ["start", "end"])
async def test_a_span_processor_that_fails_stops_no_message(
    provider: TracerProvider,
    redis_url: str,
    prefix: str,
    producers: Callable[..., Any],
    caplog: pytest.LogCaptureFixture,
    *,
    at: str,
    batch: bool,
) -> None:
    """Messages are sent, handled, retried and acked; one warning of the producer and one of the worker say why."""
    provider.add_span_processor(_Broken(at))
    attempts = Counter[int]()
    worker, producer = new_worker(redis_url, prefix), producers()
    _handle(worker, attempts, batch=batch)
    await producer.send_many("orders", BATCH)
    assert all([await producer.find("orders", each.id) for each in BATCH])
    async with managed(redis_url, prefix), working(worker):
        await wait_until_async(lambda: attempts == {1: 20, 2: 20})
    [*found] = [await producer.find("orders", each.id) for each in BATCH]
    assert {each.state if each else None for each in found} <= {None, "finished"}
    failures = [record for record in caplog.records if getattr(record, "event", "") == "tracing_failed"]
    assert len([record for record in failures if record.levelname == "WARNING"]) == 2


class _Foreign:
    """A provider and tracer whose spans fail in one of their methods."""

    def __init__(self, provider: TracerProvider, method: str) -> None:
        self._tracer = provider.get_tracer("foreign")
        self._method = method

    def get_tracer(self, *_: object, **__: object) -> "_Foreign":
        return self

    def start_span(self, *arguments: Any, **named: Any) -> Any:
        span = self._tracer.start_span(*arguments, **named)
        setattr(span, self._method, _fail)
        return span


def _fail(*_: object) -> None:
    raise Unspeakable


@pytest.mark.parametrize("batch", [False, True], ids=["single", "batch"])
@pytest.mark.parametrize("method", ["is_recording", "set_attributes", "set_status", "get_span_context", "end"])
async def test_a_span_that_fails_stops_no_message(
    redis_url: str, prefix: str, producers: Callable[..., Any], *, method: str, batch: bool
) -> None:
    """Whichever of its methods fails: messages are sent, handled and retried, and no other span is current."""
    current, attempts = list[trace.Span](), Counter[int]()
    foreign = _Foreign(TracerProvider(), method)
    with patch.object(trace, "get_tracer_provider", lambda: foreign):
        worker, producer = new_worker(redis_url, prefix), producers()
        _handle(worker, attempts, batch=batch)
        await producer.send("orders", b"x", id="0")
        await producer.send_many("orders", BATCH[1:])
        async with managed(redis_url, prefix), working(worker):
            await wait_until_async(lambda: attempts == {1: 20, 2: 20})
            current.append(trace.get_current_span())
    assert current == [trace.INVALID_SPAN]


class _Open(SpanProcessor):
    """Counts the spans that have not ended."""

    def __init__(self) -> None:
        self.count = self.ended = 0

    def on_start(self, *_: object, **__: object) -> None:
        self.count += 1

    def on_end(self, *_: object) -> None:
        self.count -= 1
        self.ended += 1


def test_a_callback_that_raises_leaves_no_span_open(provider: TracerProvider, redis_url: str, prefix: str) -> None:
    """Neither that of the batch it was called for, nor that of messages that were prepared meanwhile."""
    spans = _Open()
    provider.add_span_processor(spans)
    settings = ProducerSettings(redis_url=redis_url, prefix=prefix, batch_messages=10)
    with Producer(settings=settings) as producer, pytest.raises(Unspeakable):
        producer.send_many("orders", BATCH, on_batch=_fail)
    assert (spans.count, spans.ended) == (0, 2)


async def _one_then_none() -> AsyncIterator[Message]:
    yield BATCH[0]
    await asyncio.Event().wait()


@pytest.mark.parametrize("messages", [lambda: BATCH, _one_then_none], ids=["server", "iterable"])
async def test_a_send_that_is_cancelled_ends_its_span(
    provider: TracerProvider, own_server: Callable[..., Server], prefix: str, messages: Callable[[], Any]
) -> None:
    """While the server does not answer, or no message comes."""
    server, spans = own_server(), _Open()
    provider.add_span_processor(spans)
    async with AsyncProducer(settings=ProducerSettings(redis_url=server.url, prefix=prefix)) as producer:
        await producer.send("orders", b"x")
        server.freeze()
        sending = asyncio.create_task(producer.send_many("orders", messages()))
        await wait_until_async(lambda: spans.count)
        await cancel_all(sending)
        server.thaw()
    assert (spans.count, spans.ended) == (0, 2)


def test_a_provider_that_fails_stops_no_program(redis_url: str, prefix: str, caplog: pytest.LogCaptureFixture) -> None:
    """Messages are sent without spans, and a warning says why."""
    with patch.object(trace, "get_tracer_provider", _fail):
        producer = Producer(settings=ProducerSettings(redis_url=redis_url, prefix=prefix))
    with producer:
        producer.send("orders", b"x", id="0")
        assert producer.find("orders", "0")
    [warning] = [record for record in caplog.records if getattr(record, "event", "") == "tracing_failed"]
    assert warning.levelname == "WARNING"


def _handle(worker: Any, attempts: Counter[int], *, batch: bool) -> None:
    """Registers a handler that fails first attempts, and counts all of them."""

    def note(deliveries: list[Delivery]) -> None:
        attempts.update(delivery.attempt for delivery in deliveries)
        if any(delivery.attempt == 1 for delivery in deliveries):
            raise _Unclassed

    if batch:
        worker.on("orders", batch=20)(note)
        return

    @worker.on("orders")
    async def handle(delivery: Delivery) -> None:
        note([delivery])
