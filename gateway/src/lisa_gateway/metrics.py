"""What gateways and pushers count. `register` starts it, and adds the metrics to a registry of `prometheus_client`."""

import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from lisa_common.observing import prometheus
from lisa_common.observing.catalog import Program
from lisa_common.observing.health import Health
from lisa_common.observing.metrics import MetricSet
from lisa_common.observing.server import serving
from lisa_consumer import metrics as of_consumers
from lisa_producer import metrics as of_producers

__all__ = ["METRICS", "CountRequests", "flush", "name_route", "observed", "register"]

METRICS = MetricSet(Program.GATEWAY)

_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]

_KEY = "lisa.route"
_OTHER = "other"
_AT_ONCE = 64
_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))


def register(registry: Any = None) -> None:
    """Counts from now on what this process does as gateway or pusher, as producer and as consumer."""
    for each in (METRICS, of_producers.METRICS, of_consumers.METRICS):
        each.register(registry)


def observed(address: str | None, health: Health) -> AbstractContextManager[object]:
    """Counts from now on; serves metrics and health at an address, if there is one, while its block runs."""
    register()
    return nullcontext() if address is None else serving(address, prometheus.default(), health)


def name_route(scope: Any, route: str) -> None:
    """Names the route of a request, as documented: a path with its parameters by name."""
    scope[_KEY] = route


class _Tally:
    """Requests that are counted together: each by itself would cost more than the rest of its way."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str, str]] = Counter()
        self._times: dict[str, list[float]] = defaultdict(list)
        self._size = 0

    def add(self, route: str, method: str, status: str, took_s: float) -> None:
        self._counts[route, method, status] += 1
        self._times[route].append(took_s)
        self._size += 1
        if self._size >= _AT_ONCE:
            self.flush()

    def flush(self) -> None:
        counts, times = self._counts, self._times
        self._counts, self._times, self._size = Counter(), defaultdict(list), 0
        for labels, count in counts.items():
            METRICS.count("lisa_http_requests_total", *labels, by=count)
        for route, took_s in times.items():
            METRICS.observe("lisa_http_request_seconds", took_s, route)


_TALLY = _Tally()

flush = _TALLY.flush
"""Counts the requests that were answered lately. Call it before an exposition, and now and then."""


class CountRequests:
    """Counts the requests of an ASGI application by route, method and status, and measures them."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: _Receive, send: _Send) -> None:
        """Serves one connection of ASGI."""
        if scope["type"] != "http" or not METRICS.on:
            await self._app(scope, receive, send)
            return
        status = "none"

        async def note(message: _Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        began = time.monotonic()
        try:
            await self._app(scope, receive, note)
        except Exception:
            status = "500"
            raise
        finally:
            route, method = scope.get(_KEY, _OTHER), scope["method"]
            _TALLY.add(route, method if method in _METHODS else _OTHER, status, time.monotonic() - began)
