"""Connections of clients: how many there may be, how large and slow their headers, and how slowly they may read.

uvicorn limits none of these: it waits for ever for the rest of a header, keeps headers of any length, and waits for
ever for a client that does not take its answer. This is its protocol for httptools, with these limits added.
"""

import asyncio
import logging
import time
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from lisa_gateway.limits.cycle import CYCLE
from lisa_gateway.limits.settings import LimitSettings
from lisa_gateway.metrics import METRICS
from lisa_gateway.problems import Problem

__all__ = ["limited_protocol"]

_CHECK_S = 0.5
_JOINED_BYTES = 65_536
"""Longest body that is copied behind its head: to copy more costs as much as a second write."""


class _Watch:
    """Checks all connections now and then: a timer for each would cost more than all these checks."""

    def __init__(self) -> None:
        self._connections: set[LimitedProtocol] = set()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, connection: "LimitedProtocol") -> None:
        self._connections.add(connection)
        if self._timer is None:
            self._timer = connection.loop.call_later(_CHECK_S, self._check, connection.loop)

    def remove(self, connection: "LimitedProtocol") -> None:
        self._connections.discard(connection)

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        now = time.monotonic()
        for connection in tuple(self._connections):
            connection.check(now)
        self._timer = loop.call_later(_CHECK_S, self._check, loop) if self._connections else None


class _TooMuch(Exception):
    """Ends the parsing of a request that takes up too much."""


class _JoinedWrites:
    """Writes the head of an answer together with the first part of its body.

    Apart they are two system calls and two packets, which cost more than most of the rest of an answer.
    """

    __slots__ = ("_cycle", "_head", "_is_begun", "_transport", "is_closing")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._transport = cycle.transport
        self._head = b""
        self._is_begun = False
        self.is_closing = cycle.transport.is_closing

    def write(self, data: bytes) -> None:
        """Writes a part, or keeps it if it is the head, which the application follows up at once."""
        if self._cycle.response_started and not self._is_begun:
            self._is_begun = True
            self._head = data
        elif self._head:
            head, self._head = self._head, b""
            self.write_whole(head, data)
        else:
            self._transport.write(data)

    def write_whole(self, head: bytes, body: bytes) -> None:
        """Writes the head of an answer, and its body or the first part of it."""
        self._is_begun = True
        # Not `writelines`: asyncio's never slowed the application down before Python 3.12.9 and 3.13.2, so that a
        # client that does not read would make the gateway hold any amount.
        if len(body) <= _JOINED_BYTES:
            self._transport.write(head + body)
        else:
            self._transport.write(head)
            self._transport.write(body)

    def flush(self) -> None:
        """Writes a head that no body has followed, as in an answer to HEAD."""
        if self._head:
            self.write(b"")

    def close(self) -> None:
        """Writes what is left, and closes the connection."""
        self.flush()
        self._transport.close()


class LimitedProtocol(HttpToolsProtocol):
    """One connection of a client."""

    limits: LimitSettings
    watch: _Watch

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._unparsed = 0
        """Bytes since the parser last had something for us: it buffers a header until its end."""
        self._parsing = 0
        """The same, as it was when the data arrived that is being parsed."""
        self._in_message = False
        """Whether the headers of a request have ended, and the request has not."""
        self._head_since: float | None = None
        """Since when a request has been incomplete, up to the end of its headers."""
        self._unread_since: float | None = None
        """Since when the client has left a part of an answer unread."""
        self._unread = 0
        self._refusal: Problem | None = None
        self._cycles: list[RequestResponseCycle] = []
        """Requests without a whole answer, queued ones included."""

    # The connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begins to wait for headers, unless there are too many connections."""
        super().connection_made(transport)
        self.watch.add(self)
        self._head_since = time.monotonic()
        if len(self.connections) > self.limits.max_clients:
            self._refuse(Problem(503, "too-busy", f"the gateway has {self.limits.max_clients} connections"))

    def connection_lost(self, exc: Exception | None) -> None:
        """Forgets the connection."""
        self.watch.remove(self)
        super().connection_lost(exc)
        self._end_answers()

    def _end_answers(self) -> None:
        """Tells all requests that their client is gone; uvicorn itself tells only the one that came last."""
        for cycle in self._cycles:
            if not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
            self._unlink(cycle)
        self._cycles.clear()

    def _unlink(self, cycle: RequestResponseCycle) -> None:
        """Undoes what refers back to a request, which only a garbage collection would free otherwise."""
        cycle.transport = self.transport
        cycle.scope.pop(CYCLE, None)  # type: ignore[misc]

    def check(self, now: float) -> None:
        """Ends the connection if its client is too slow."""
        slow_s = self.limits.slow_s
        if self._head_since is not None and now - self._head_since > slow_s and not self.transport.is_closing():
            self._refuse(Problem(408, "too-slow", f"the headers must arrive within {slow_s:g} s"))
            return
        unread = self.transport.get_write_buffer_size()
        if not unread:
            self._unread_since = None
        elif self._unread_since is None:
            self._unread_since, self._unread = now, unread
        elif now - self._unread_since > slow_s:
            if self._unread - unread < slow_s * self.limits.min_bytes_s:
                self.transport.abort()
            else:
                self._unread_since, self._unread = now, unread

    # What arrives

    def data_received(self, data: bytes) -> None:
        """Parses what arrives, within the limits."""
        if self._refusal is not None or self.transport.is_closing():
            return
        # The rest of a request that already has its answer counts as a slow header: nobody waits for it.
        if self._head_since is None and (not self._in_message or self.cycle.response_complete):
            self._head_since = time.monotonic()
        self._unparsed += len(data)
        self._parsing = self._unparsed
        super().data_received(data)
        if self._unparsed > self.limits.max_header_bytes + len(data):
            self._refuse(self._too_large())

    def on_header(self, name: bytes, value: bytes) -> None:
        """Takes a header. Drops trailers: the headers are those that a proxy has checked, and say who calls."""
        if not self._in_message:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Starts or queues the request, unless its headers are too large; `data_received` bounds them until then."""
        most = self.limits.max_header_bytes
        # Mostly, so little has arrived that there is nothing to add up.
        if self._parsing > most and (
            len(self.url) + sum([len(name) + len(value) + 4 for name, value in self.headers]) > most
        ):
            self._refusal = self._too_large()
            # The parser turns it into its own error, for which the protocol sends a response and closes.
            raise _TooMuch
        self._head_since, self._unparsed, self._in_message = None, 0, True
        super().on_headers_complete()
        # The request has not begun yet: its task starts with the next turn of the loop.
        self.cycle.transport = _JoinedWrites(self.cycle)  # type: ignore[assignment]
        self.scope[CYCLE] = self.cycle  # type: ignore[literal-required]
        # uvicorn itself knows from 0.53 on, and before when it sends the head.
        self.cycle.keep_alive = self.cycle.keep_alive and self.parser.should_keep_alive()
        self._cycles.append(self.cycle)
        if len(self.pipeline) > self.limits.max_requests_ahead:
            most = self.limits.max_requests_ahead
            self._refusal = Problem(400, "too-busy", f"at most {most} requests may be sent before their answers")
            raise _TooMuch

    def on_response_complete(self) -> None:
        """Ends an answer, and starts the next request."""
        for cycle in self._cycles:
            cycle.transport.flush()  # type: ignore[attr-defined]
            if cycle.response_complete:
                self._unlink(cycle)
        self._cycles = [cycle for cycle in self._cycles if not cycle.response_complete]
        super().on_response_complete()

    def on_body(self, body: bytes) -> None:
        """Takes a part of the body."""
        self._unparsed = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Ends a request."""
        self._unparsed, self._in_message = 0, False
        super().on_message_complete()

    def _too_large(self) -> Problem:
        most = self.limits.max_header_bytes
        more = {"field": "headers", "expected": f"at most {most} bytes", "limit": most}
        return Problem(431, "too-large", f"headers must be at most {most} bytes", more)

    # Refusals

    def send_400_response(self, msg: str) -> None:
        """Refuses invalid HTTP, and requests beyond the limits."""
        expected = {"field": "request", "expected": "an HTTP/1.1 request"}
        self._refuse(self._refusal or Problem(400, "invalid-input", msg, expected))

    @property
    def _is_answering(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not all(each.response_complete for each in self._cycles)

    def _refuse(self, problem: Problem) -> None:
        METRICS.count("lisa_http_requests_total", "refused", "none", str(problem.status))
        self._refusal = problem
        self._head_since = None
        if not self._is_answering:
            self.transport.write(problem.raw)
        # Else an answer is under way, and a second one within it would be taken for its body.
        self.transport.close()
        self._end_answers()


class _OneLineLess(logging.Filter):
    """Drops uvicorn's warnings about malformed requests, with which any client could fill the log."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno != logging.WARNING or not record.msg.startswith(
            ("Invalid HTTP request", "Unsupported upgrade", "No supported WebSocket")
        )


def limited_protocol(settings: LimitSettings) -> type[HttpToolsProtocol]:
    """The protocol for `uvicorn.Config(http=…, ws="none")`, with these limits."""
    quiet = logging.getLogger("uvicorn.error")
    if not any(isinstance(each, _OneLineLess) for each in quiet.filters):
        quiet.addFilter(_OneLineLess())
    return type("Connection", (LimitedProtocol,), {"limits": settings, "watch": _Watch()})
