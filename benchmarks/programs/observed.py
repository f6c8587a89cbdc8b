"""Sends and drains in one process, in turns without and with metrics and traces; prints what each message took.

Processor time, as a difference of some percent drowns in what else a machine does with the clock on the wall.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from unittest.mock import patch

import redis
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from prometheus_client import CollectorRegistry

from lisa_common.observing import tracing
from lisa_consumer import ConsumerSettings, Delivery, Worker, metrics as consumer_metrics
from lisa_producer import Message, Producer, metrics as producer_metrics

_METRICS = (consumer_metrics.METRICS, producer_metrics.METRICS)
_TURNS = 12
_VARIANTS = ("without", "metrics", "traces")


class _Nowhere(SpanExporter):
    """Takes spans, and does nothing with them."""

    def export(self, spans: object) -> SpanExportResult:  # noqa: ARG002
        return SpanExportResult.SUCCESS


def main(url: str, messages: int, rounds: int) -> None:
    """Prints one JSON object for each round."""
    provider = TracerProvider(sampler=ParentBased(TraceIdRatioBased(0.01)))
    provider.add_span_processor(BatchSpanProcessor(_Nowhere()))
    trace.set_tracer_provider(provider)
    for metrics in _METRICS:
        metrics.register(CollectorRegistry())
    bodies = ["x" * 200] * messages
    with redis.Redis.from_url(url) as client:
        for _ in range(rounds):
            turns: dict[str, list[tuple[float, float]]] = {variant: [] for variant in _VARIANTS}
            for turn in range(_TURNS):
                shift = turn % len(_VARIANTS)
                # Each comes first in turn, as a process may become faster or slower.
                for variant in _VARIANTS[shift:] + _VARIANTS[:shift]:
                    turns[variant].append(_measure(variant, url, bodies))
                    client.flushdb()
            # Of short turns the cheapest is the one that other processes have disturbed least.
            print(
                json.dumps({variant: [min(costs) for costs in zip(*turns[variant], strict=True)] for variant in turns}),
                flush=True,
            )


def _measure(variant: str, url: str, bodies: list[str]) -> tuple[float, float]:
    """One turn. Returns µs for each message, of the send and of the drain."""
    with ExitStack() as stack:
        for metrics in _METRICS:
            metrics.on = variant == "metrics"
        if variant != "traces":
            stack.enter_context(patch.object(tracing, "ask", lambda: None))
        send_us = _cost(lambda: _send(url, bodies))
        drain_us = _cost(lambda: asyncio.run(_drain(url, len(bodies))))
    return send_us / len(bodies), drain_us / len(bodies)


def _cost(work: Callable[[], None]) -> float:
    """The processor time of this process, in µs."""
    began = time.process_time_ns()
    work()
    return (time.process_time_ns() - began) / 1000


def _send(url: str, bodies: list[str]) -> None:
    with Producer(url) as producer:
        producer.send_many("orders", (Message(body=body) for body in bodies), on_result=lambda _: None)


async def _drain(url: str, messages: int) -> None:
    # A worker that stops waits for the read that is under way.
    worker = Worker("billing", settings=ConsumerSettings(redis_url=url, block_s=0.05))
    left = messages

    @worker.on("orders")
    async def handle(_: Delivery) -> None:
        nonlocal left
        left -= 1
        if not left:
            worker.stop()

    await worker.serve()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
