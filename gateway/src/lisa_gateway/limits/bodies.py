"""Limits of request bodies: how large they may be, and how slowly they may arrive."""

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.exceptions import HTTPException

from lisa_gateway.limits.cycle import CYCLE
from lisa_gateway.limits.settings import LimitSettings
from lisa_gateway.problems import Problem, send_problem

__all__ = ["BodyLimits", "RequestCut"]

_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]

_CLOSE = (b"connection", b"close")
STREAMS = (b"application/x-ndjson", b"application/ndjson", b"application/jsonl")
"""Content types of streams: of any length, as their lines are taken one by one."""


class RequestCut(HTTPException):
    """A body is too large, or arrives too slowly; the answer ends the connection."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        super().__init__(problem.status, problem.detail, {"connection": "close"})


class BodyLimits:
    """Refuses bodies over the limit: at once if their length is declared, else where they exceed it.

    Only the time that the gateway waits for a body counts, not the time that it works in between.
    """

    def __init__(self, app: Any, limits: LimitSettings) -> None:
        self._app: Callable[..., Awaitable[None]] = app
        self._limits = limits

    # No coroutine of its own: it would be one more in the way of each request.
    def __call__(self, scope: Any, receive: _Receive, send: _Send) -> Awaitable[None]:
        """Serves one connection of ASGI."""
        if scope["type"] != "http":
            return self._app(scope, receive, send)
        cycle = scope.get(CYCLE)
        if cycle is not None and not cycle.more_body and len(cycle.body) <= self._limits.max_body_bytes:
            # Most bodies are here already: nothing is left to wait for.
            return self._app(scope, receive, send)
        given = dict(scope["headers"])
        length = given.get(b"content-length", b"")
        is_stream = given.get(b"content-type", b"").partition(b";")[0].strip().lower() in STREAMS
        if not is_stream and length.isdigit() and int(length) > self._limits.max_body_bytes:
            return send_problem(send, _too_large(self._limits, int(length)), _CLOSE)
        if length in (b"", b"0") and b"transfer-encoding" not in given:
            return self._app(scope, receive, send)
        return self._app(scope, _Reader(receive, self._limits, bounded=not is_stream).receive, send)


def _too_large(limits: LimitSettings, size: int) -> Problem:
    most = limits.max_body_bytes
    more = {"field": "body", "value": size, "expected": f"at most {most} bytes", "limit": most}
    return Problem(413, "too-large", f"body must be at most {most} bytes; got {size} bytes", more)


class _Reader:
    """Receives one body within its limits."""

    def __init__(self, receive: _Receive, limits: LimitSettings, *, bounded: bool) -> None:
        self._receive = receive
        self._limits = limits
        self._bounded = bounded
        self._size = 0
        self._waited_s = 0.0
        self._ended = False

    async def receive(self) -> _Message:
        """The next part of the body; after its end, the message that says that the client is gone."""
        if self._ended:
            return await self._receive()
        budget_s = self._limits.slow_s + self._size / self._limits.min_bytes_s - self._waited_s
        began = time.monotonic()
        try:
            async with asyncio.timeout(max(0.0, budget_s)):
                message = await self._receive()
        except TimeoutError:
            raise RequestCut(
                Problem(408, "too-slow", f"body must arrive faster; got {self._size} bytes so far")
            ) from None
        self._waited_s += time.monotonic() - began
        self._size += len(message.get("body", b""))
        if self._bounded and self._size > self._limits.max_body_bytes:
            raise RequestCut(_too_large(self._limits, self._size))
        self._ended = not message.get("more_body", False)
        return message
