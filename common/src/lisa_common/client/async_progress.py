"""Adds to the Redis client's asyncio connections a progress timeout, and quick exchanges that keep a cancellation.

With a progress timeout an exchange may last as long as bytes keep arriving. Blocking sockets time out this way anyway:
their timeout applies to each `recv`.
"""

import asyncio
import math
from types import TracebackType
from typing import Any, Self

import redis

__all__ = ["ProgressTimeout", "hardened"]


def hardened(kind: type[Any]) -> type[Any]:
    """A subclass with what the Redis client lacks: times of arrivals, one error for closed connections, cancellations.

    Its `arrived_at` is when bytes last arrived, by the event loop's clock. A write to a closed connection raises the
    client's ConnectionError with any event loop. A cancellation during a write is kept: the Redis client writes through
    `wait_for`, which in Python 3.11 loses one that comes at the moment of its success.

    `send_packed` and `read_replies` make exchanges without the client's own tasks, timers and layers.
    """
    return type("Connection", (_Hardened, kind), {})


class _Hardened:
    """What `hardened` puts before a class of connections."""

    arrived_at = 0.0
    _fresh_until = 0.0
    """Until when it need not be checked by a PING, by the event loop's clock."""

    async def _connect(self: Any) -> None:
        await super()._connect()  # type: ignore[misc]
        feed, clock = self._reader.feed_data, asyncio.get_running_loop().time

        def note(data: bytes) -> None:
            self.arrived_at = clock()
            feed(data)

        self._clock, self._reader.feed_data = clock, note

    async def send_packed_command(self, *args: Any, **options: Any) -> None:
        task = asyncio.current_task()
        before = task.cancelling() if task else 0
        try:
            await super().send_packed_command(*args, **options)  # type: ignore[misc]
        except RuntimeError as error:
            raise _closed(error) from error
        if task and task.cancelling() > before:
            raise asyncio.CancelledError

    async def send_packed(self: Any, data: bytes) -> None:
        """Writes packed commands; connects before that, or checks a connection that has long been idle."""
        if not self.is_connected or self._clock() > self._fresh_until:
            await self.send_packed_command(data)
            return
        try:
            self._writer.write(data)
        except RuntimeError as error:
            raise _closed(error) from error
        if not self._writer.transport.get_write_buffer_size():
            # The kernel has all of it. This only raises the error of a broken connection.
            await self._writer.drain()
            return
        try:
            async with asyncio.timeout(self.socket_timeout):
                await self._writer.drain()
        except TimeoutError:
            raise redis.exceptions.TimeoutError("Timeout writing to socket") from None

    async def read_replies(self: Any, count: int) -> list[Any]:
        """So many replies, errors of the server among them; without a time limit."""
        read = self._parser.read_response
        replies = [await read() for _ in range(count)]
        self._fresh_until = self._clock() + (self.health_check_interval or math.inf)
        return replies


def _closed(error: RuntimeError) -> Exception:
    """The error of a write to a connection that has ended: uvloop raises a RuntimeError, asyncio a ConnectionError."""
    return redis.exceptions.ConnectionError(str(error)) if "closed" in str(error) else error


class ProgressTimeout:
    """Raises TimeoutError in its block once nothing has arrived over a connection for `timeout_s` seconds.

    One timer serves the whole exchange; it is restarted only when it fires.
    """

    __slots__ = ("_connection", "_limit", "_loop", "_timeout_s", "_timer")

    def __init__(self, connection: Any, timeout_s: float) -> None:
        self._connection = connection
        self._timeout_s = timeout_s
        self._limit = asyncio.timeout(None)
        self._loop = asyncio.get_running_loop()

    async def __aenter__(self) -> Self:
        await self._limit.__aenter__()
        self._timer = self._loop.call_later(self._timeout_s, self._check)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        await self._limit.__aexit__(kind, error, trace)

    def _check(self) -> None:
        quiet_until = self._connection.arrived_at + self._timeout_s
        if quiet_until > self._loop.time():
            self._timer = self._loop.call_at(quiet_until, self._check)
        else:
            self._limit.reschedule(self._loop.time())
