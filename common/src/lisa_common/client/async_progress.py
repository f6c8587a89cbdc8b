"""Adds to the Redis client's asyncio connections a progress timeout, and writes that keep a cancellation.

With a progress timeout an exchange may last as long as bytes keep arriving. Blocking sockets time out this way anyway:
their timeout applies to each `recv`.
"""

import asyncio
from types import TracebackType
from typing import Any, Self

import redis

__all__ = ["ProgressTimeout", "hardened"]


def hardened(kind: type[Any]) -> type[Any]:
    """A subclass with what the Redis client lacks: times of arrivals, one error for closed connections, cancellations.

    Its `arrived_at` is when bytes last arrived, by the event loop's clock. A write to a closed connection raises the
    client's ConnectionError with any event loop. A cancellation during a write is kept: the Redis client writes through
    `wait_for`, which in Python 3.11 loses one that comes at the moment of its success.
    """

    class Connection(kind):  # type: ignore[misc] # the class depends on the scheme
        arrived_at = 0.0

        async def _connect(self) -> None:
            await super()._connect()
            feed, clock = self._reader.feed_data, asyncio.get_running_loop().time

            def note(data: bytes) -> None:
                self.arrived_at = clock()
                feed(data)

            self._reader.feed_data = note

        async def send_packed_command(self, *args: Any, **options: Any) -> None:
            task = asyncio.current_task()
            before = task.cancelling() if task else 0
            try:
                await super().send_packed_command(*args, **options)
            except RuntimeError as error:
                # uvloop says so of a write to a connection that has ended; asyncio raises a ConnectionError.
                if "closed" not in str(error):
                    raise
                raise redis.exceptions.ConnectionError(str(error)) from error
            if task and task.cancelling() > before:
                raise asyncio.CancelledError

    return Connection


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
