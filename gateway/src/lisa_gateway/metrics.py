"""What gateways and pushers count. `register` starts it, and adds the metrics to a registry of `prometheus_client`."""

import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from starlette.types import Message, Receive, Send

from lisa_common.observing import prometheus
from lisa_common.observing.catalog import Program
from lisa_common.observing.health import Health
from lisa_common.observing.metrics import MetricSet
from lisa_common.observing.server import serving
from lisa_consumer import metrics as of_consumers
from lisa_producer import metrics as of_producers

__all__ = ["METRICS", "CountRequests", "name_route", "observed", "register"]

METRICS = MetricSet(Program.GATEWAY)

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


class CountRequests:
    """Counts the requests of an ASGI application by route, method and status, and measures them.

    `log` receives scope, status and duration in s of each.
    """

    def __init__(self, app: Any, log: Callable[[Any, str, float], None] | None = None) -> None:
        self._app = app
        self._log = log

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Serves one connection of ASGI."""
        if scope["type"] != "http" or not (METRICS.on or self._log):
            await self._app(scope, receive, send)
            return
        status, answered = "none", 0.0

        def note(message: Message) -> Awaitable[None]:
            nonlocal status, answered
            if message["type"] == "http.response.start":
                status = str(message["status"])
            # The rest of a refused body may be read after that.
            answered = time.monotonic()
            return send(message)

        began = time.monotonic()
        try:
            await self._app(scope, receive, note)
        except Exception:
            status = "500"
            raise
        finally:
            took_s = (answered or time.monotonic()) - began
            if METRICS.on:
                _count(scope, status, took_s)
            if self._log:
                self._log(scope, status, took_s)


def _count(scope: Any, status: str, took_s: float) -> None:
    route, method = scope.get(_KEY, _OTHER), scope["method"]
    METRICS.count("lisa_http_requests_total", route, method if method in _METHODS else _OTHER, status)
    METRICS.observe("lisa_http_request_seconds", (took_s,), route)
