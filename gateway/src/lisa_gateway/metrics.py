"""What gateways and pushers count. `register` starts it, and adds the metrics to a registry of `prometheus_client`."""

import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from lisa_common.observing import prometheus
from lisa_common.observing.catalog import Program
from lisa_common.observing.gathered import Gathered
from lisa_common.observing.health import Health
from lisa_common.observing.metrics import MetricSet
from lisa_common.observing.server import serving
from lisa_consumer import metrics as of_consumers
from lisa_producer import metrics as of_producers

__all__ = [
    "METRICS",
    "CountRequests",
    "flush",
    "gather",
    "name_route",
    "observed",
    "register",
    "stop_gathering",
]

METRICS = MetricSet(Program.GATEWAY)

_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]

_KEY = "lisa.route"
_OTHER = "other"
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


_Request = tuple[tuple[str, str, str], float]
"""Route, method and status; and duration in s."""


def _count_requests(requests: Sequence[_Request]) -> None:
    times: dict[str, list[float]] = defaultdict(list)
    for (route, _, _), took_s in requests:
        times[route].append(took_s)
    for labels, count in Counter([labels for labels, _ in requests]).items():
        METRICS.count("lisa_http_requests_total", *labels, by=count)
    for route, took in times.items():
        METRICS.observe("lisa_http_request_seconds", took, route)


_REQUESTS = Gathered(_count_requests)


def gather() -> None:
    """Has requests and their sends wait for `flush`, until `stop_gathering`."""
    _REQUESTS.begin()
    of_producers.SENDS.begin()


def stop_gathering() -> None:
    """Undoes one call of `gather`."""
    _REQUESTS.end()
    of_producers.SENDS.end()


def flush() -> None:
    """Counts what was gathered lately. Call it before an exposition, and now and then."""
    _REQUESTS.flush()
    of_producers.SENDS.flush()


class CountRequests:
    """Counts the requests of an ASGI application by route, method and status, and measures them.

    `log` receives scope, status and duration in s of each.
    """

    def __init__(self, app: Any, log: Callable[[Any, str, float], None] | None = None) -> None:
        self._app = app
        self._log = log

    async def __call__(self, scope: Any, receive: _Receive, send: _Send) -> None:
        """Serves one connection of ASGI."""
        if scope["type"] != "http" or not (METRICS.on or self._log):
            await self._app(scope, receive, send)
            return
        status = "none"

        def note(message: _Message) -> Awaitable[None]:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            return send(message)

        began = time.monotonic()
        try:
            await self._app(scope, receive, note)
        except Exception:
            status = "500"
            raise
        finally:
            took_s = time.monotonic() - began
            if METRICS.on:
                _count(scope, status, took_s)
            if self._log:
                self._log(scope, status, took_s)


def _count(scope: Any, status: str, took_s: float) -> None:
    route, method = scope.get(_KEY, _OTHER), scope["method"]
    request = (route, method if method in _METHODS else _OTHER, status), took_s
    if _REQUESTS.on:
        _REQUESTS.add(request)
    else:
        _count_requests((request,))
