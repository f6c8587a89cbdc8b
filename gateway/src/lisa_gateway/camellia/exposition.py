"""`GET /metrics`: what all programs of Lisa export, and camellia's gauges.

Camellia's are of the last complete window, of sizes, and of the process.
"""

import asyncio
import gc
import os
import platform
import resource
import time
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata

from prometheus_client import generate_latest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from lisa_common.errors import LisaError
from lisa_common.observing import prometheus
from lisa_gateway.access import ROUTES, caller_of
from lisa_gateway.camellia.monitor import Gap, Monitor
from lisa_gateway.camellia.observation import topic_info
from lisa_gateway.gateway import Gateway
from lisa_gateway.metrics import flush, name_route

__all__ = ["route"]

_PATH = "/metrics"
_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_BUCKETS = (
    "size_0_1min",
    "size_1min_10min",
    "size_10min_30min",
    "size_30min_1hour",
    "size_1hour_6hour",
    "size_6hour_1day",
    "size_1day_7day",
    "size_7day_30day",
    "size_30day_infinite",
)
_STARTED = time.time()

_Row = tuple[Mapping[str, str], float]


def route(gateway: Gateway, monitor: Monitor) -> Route:
    """Serves the gauges. While Redis is away, those of sizes are missing."""

    async def metrics(request: Request) -> Response:
        name_route(request.scope, _PATH)
        ROUTES[_PATH].check(caller_of(request.scope))
        lines = [*_process(), *_windows(monitor), *_own(gateway, monitor)]
        try:
            infos = [topic_info(status) for status in await gateway.admin.status()]
        except LisaError:
            infos = []
        rows: list[_Row] = []
        for info in infos:
            sizes = {name: info[name] for name in ("readyQueueSize", "ackQueueSize", "waitingQueueSize")}
            sizes |= zip(_BUCKETS, info["waitingQueueInfo"].values(), strict=True)
            rows += [({"topic": info["topic"], "type": kind}, size) for kind, size in sizes.items()]
        lines += _gauge("topic_info", rows)
        # In a thread: a thousand topics take longer than other requests should wait.
        flush()
        common = await asyncio.to_thread(generate_latest, prometheus.default())
        return PlainTextResponse(common + "".join(f"{line}\n" for line in lines).encode(), media_type=_TYPE)

    return Route(_PATH, metrics)


def _process() -> Iterator[str]:
    version = metadata.version("lisa-gateway")
    yield from _gauge("info", [({"version": version, "python": platform.python_version()}, 1)])
    yield from _gauge("start_time", [({}, _STARTED * 1000)])
    yield from _gauge("uptime", [({}, (time.time() - _STARTED) * 1000)])
    used = resource.getrusage(resource.RUSAGE_SELF)
    yield from _gauge("memory_info", [({"type": "maxResident"}, used.ru_maxrss * 1024)])
    yield from _gauge("cpu", [({"type": "num"}, os.cpu_count() or 1), ({"type": "s"}, used.ru_utime + used.ru_stime)])
    collected = sum(generation["collections"] for generation in gc.get_stats())
    yield from _gauge("gc", [({"type": "count"}, collected)])


def _windows(monitor: Monitor) -> Iterator[str]:
    window = monitor.complete()
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
        # Names of topics and versions hold no character that needs an escape.
        shown = ",".join(f'{label}="{text}"' for label, text in labels.items())
        yield f"{name}{{{shown}}} {value:.15g}" if shown else f"{name} {value:.15g}"
