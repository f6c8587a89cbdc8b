"""`GET /metrics`: what all programs of Lisa export, and camellia's gauges.

Camellia's are of the last complete window, and of sizes.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import generate_latest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lisa_common.errors import LisaError
from lisa_common.observing import prometheus
from lisa_common.observing.catalog import MAX_TOPICS, OTHER
from lisa_gateway.access import ROUTES, caller_of
from lisa_gateway.camellia.monitor import Gap, Monitor, Window
from lisa_gateway.camellia.observation import BUCKETS, topic_info
from lisa_gateway.gateway import Gateway
from lisa_gateway.metrics import name_route
from lisa_manager import TopicStatus

__all__ = ["route"]

_PATH = "/metrics"
_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_BUCKETS = tuple(f"size_{low}_{high}" for low, high in BUCKETS)
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})

_Row = tuple[Mapping[str, str], float]


def route(gateway: Gateway, monitor: Monitor) -> Route:
    """Serves the gauges. While Redis is away, those of sizes are missing."""

    async def metrics(request: Request) -> Response:
        name_route(request.scope, _PATH)
        ROUTES[_PATH].check(caller_of(request.scope))
        window = monitor.complete()
        try:
            statuses = await gateway.admin.status()
        except LisaError:
            statuses = []

        def text() -> bytes:
            lines = [*_windows(window), *_own(gateway, monitor), *_sizes(statuses)]
            own = "".join(f"{line}\n" for line in lines)
            return generate_latest(prometheus.default()) + own.encode("utf-8", "backslashreplace")

        # In a thread: a thousand topics take longer than other requests should wait.
        return Response(await asyncio.to_thread(text), media_type=_TYPE)

    return Route(_PATH, metrics)


def _sizes(statuses: Iterable[TopicStatus]) -> Iterator[str]:
    """The sizes of `MAX_TOPICS` topics, and of all others together."""
    rows: dict[str, Counter[str]] = {}
    for status in statuses:
        info = topic_info(status)
        of = rows.setdefault(info["topic"] if len(rows) < MAX_TOPICS else OTHER, Counter())
        sizes = {name: info[name] for name in ("readyQueueSize", "ackQueueSize", "waitingQueueSize")}
        of.update(sizes | dict(zip(_BUCKETS, info["waitingQueueInfo"].values(), strict=True)))
    yield from _gauge(
        "topic_info",
        (({"topic": topic, "type": kind}, size) for topic, of in rows.items() for kind, size in of.items()),
    )


def _windows(window: Window) -> Iterator[str]:
    counts = [({"topic": topic, "type": str(name)}, n) for topic, of in window.events.items() for name, n in of.items()]
    yield from _gauge("request", counts)
    for name, gaps in (("pull_msg_time_gap", window.pulled), ("ready_queue_time_gap", window.ready)):
        yield from _gauge(name, [row for topic, gap in gaps.items() for row in _gap_rows(topic, gap)])


def _gap_rows(topic: str, gap: Gap) -> Iterator[_Row]:
    for kind, value in gap.fields(topic).items():
        if kind != "topic":
            yield {"topic": topic, "type": kind}, value


def _own(gateway: Gateway, monitor: Monitor) -> Iterator[str]:
    yield from _gauge("long_polls", [({}, gateway.count_polls())])
    yield from _gauge("stale_acks", [({}, monitor.stale)])
    yield from _gauge("swallowed_sends", [({}, monitor.swallowed)])


def _gauge(name: str, rows: Iterable[_Row]) -> Iterator[str]:
    yield f"# TYPE {name} gauge"
    for labels, value in rows:
        shown = ",".join(f'{label}="{text.translate(_ESCAPES)}"' for label, text in labels.items())
        yield f"{name}{{{shown}}} {value:.15g}" if shown else f"{name} {value:.15g}"
