"""Request bodies: how they may be framed, how large they may be, and how slowly they may arrive."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from starlette.types import Message, Receive, Send

from lisa_gateway.limits.settings import LimitSettings
from lisa_gateway.problems import Problem, Refusal, response_of

__all__ = ["BodyLimits", "is_streamed", "take_stream"]

_STREAMED = "lisa.streamed"

_DISCARDED_BYTES = 65_536
"""Of a body that is not read, because its request was refused before; a larger one ends the connection."""

_LINGER_S, _LINGER_BYTES = 2.0, 64 * 1024 * 1024
"""How long a body is read on after the answer, and how much of it."""


def take_stream(scope: Any) -> None:
    """Lets the body of a request be of any length, because its lines are taken one by one. Call it before any."""
    scope[_STREAMED] = True


def is_streamed(scope: Any) -> bool:
    """Whether somebody takes the body line by line."""
    return _STREAMED in scope


class BodyLimits:
    """Refuses requests that other servers may read otherwise, and raises Refusal where a body breaks a limit.

    Each interface answers a Refusal in its own form. Only the time in which the gateway waits for a body counts, not
    the time in which it works.
    """

    def __init__(self, app: Any, limits: LimitSettings) -> None:
        self._app: Callable[..., Awaitable[None]] = app
        self._limits = limits

    # No coroutine of its own: it would be one more in the way of each request.
    def __call__(self, scope: Any, receive: Receive, send: Send) -> Awaitable[None]:
        """Serves one connection of ASGI."""
        if scope["type"] != "http":
            return self._app(scope, receive, send)
        problem, length, coding = _framing(scope)
        if problem is not None:
            return response_of(problem)(scope, receive, send)
        if coding is None and (length == b"0" or (length is None and scope["http_version"] != "2")):
            return self._app(scope, receive, send)
        return _Reader(scope, receive, send, self._limits, 0 if length is None else int(length)).serve(self._app)


def _framing(scope: Any) -> tuple[Problem | None, bytes | None, bytes | None]:
    """The first fault of the headers that frame a request, or None; the length and the transfer coding of its body."""
    hosts = kinds = 0
    length = coding = problem = None
    for name, value in scope["headers"]:
        if name == b"host":
            hosts += 1 if value else 2
        elif name == b"content-type":
            kinds += 1
        elif name == b"content-length":
            length = value
        elif name == b"transfer-encoding":
            coding = value if coding is None else b"several"
    if hosts != 1 and scope["http_version"] == "1.1":
        # RFC 9112, 3.2.
        problem = _unfit("host", "given once")
    elif kinds > 1:
        # By one of them, JSON is a message with its options; by the other, the text of another message.
        problem = _unfit("content-type", "given once")
    elif coding is not None and (length is not None or coding.lower() != b"chunked"):
        # RFC 9112, 6.1: a proxy in front may have taken such a body for another.
        problem = _unfit("transfer-encoding", "chunked, without a content-length")
    return problem, length, coding


def _unfit(header: str, expected: str) -> Problem:
    more = {"field": header, "expected": expected}
    return Problem(400, "invalid-input", f"header {header} must be {expected}", more, closes=True)


class _Reader:
    """Receives the body of one request within its limits, and sees to it that the connection ends well.

    A server closes a connection without a word where it has answered and the body is still under way: a client that has
    the next request on its way gets no answer. And it keeps a connection whose body somebody still holds.
    """

    def __init__(self, scope: Any, receive: Receive, send: Send, limits: LimitSettings, declared: int) -> None:
        self._scope = scope
        self._receive: Receive | None = receive
        self._send: Send | None = send
        self._limits = limits
        self._declared = declared
        self._size = 0
        self._waited_s = 0.0
        self._is_whole = self._is_refused = False

    async def serve(self, app: Callable[..., Awaitable[None]]) -> None:
        """Serves the request."""
        try:
            await app(self._scope, self.receive, self.send)
            await self._linger()
        finally:
            # Errors keep the frames that they came through until Python collects them; those must not hold the body.
            self._receive = self._send = None

    async def receive(self) -> Message:
        """Returns the next part of the body; after its end, the message that says that the client is gone.

        Raises Refusal for a body that is too large, too slow or cut off.
        """
        if self._receive is None:
            return {"type": "http.disconnect"}
        if self._is_whole:
            return await self._receive()
        self._check(self._declared)
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._left_s):
                message = await self._receive()
        except TimeoutError:
            raise self._refusal(408, "too-slow", f"body must arrive faster; got {self._size} bytes so far") from None
        finally:
            self._waited_s += time.monotonic() - began
        if message["type"] == "http.disconnect":
            # The client is gone, or its chunks cannot be read.
            detail = f"body must arrive whole; got {self._size} bytes"
            raise self._refusal(400, "invalid-input", detail, field="body")
        self._size += len(message.get("body", b""))
        self._check(self._size)
        self._is_whole = not message.get("more_body", False)
        return message

    @property
    def _left_s(self) -> float:
        """How long the gateway still waits for the body."""
        return max(0.0, self._limits.slow_s + self._size / self._limits.min_bytes_s - self._waited_s)

    def _check(self, size: int) -> None:
        most = self._limits.max_body_bytes
        if size > most and not is_streamed(self._scope):
            detail = f"body must be at most {most} bytes; got {size} bytes"
            more = {"field": "body", "value": size, "expected": f"at most {most} bytes", "limit": most}
            raise self._refusal(413, "too-large", detail, **more)

    def _refusal(self, status: int, kind: str, detail: str, **more: Any) -> Refusal:
        self._is_refused = True
        return Refusal(Problem(status, kind, detail, more))

    async def send(self, message: Message) -> None:
        """Sends a part of the answer. Before it begins, it takes in the rest of the body, or says that it closes."""
        if self._send is None:
            return
        is_first = message["type"] == "http.response.start"
        if is_first and not await self._has_discarded() and self._scope["http_version"] != "2":
            message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
        await self._send(message)

    async def _linger(self) -> None:
        """Reads on for a moment where the answer came before the end of a large body.

        A close would reset the connection before a proxy has seen the answer: for its client that is a 502, and the
        proxy may leave the gateway alone for a while.
        """
        left = _LINGER_BYTES
        with suppress(TimeoutError):
            async with asyncio.timeout(min(_LINGER_S, self._left_s)):
                while not self._is_whole and self._receive and left > 0:
                    message = await self._receive()
                    left -= len(message.get("body", b""))
                    self._is_whole = not message.get("more_body", False)

    async def _has_discarded(self) -> bool:
        """Reads the rest of a body that nobody has read, if it is small. Returns whether it is whole then."""
        try:
            while not self._is_whole and not self._is_refused and max(self._size, self._declared) <= _DISCARDED_BYTES:
                await self.receive()
        except Refusal:
            return False
        return self._is_whole
