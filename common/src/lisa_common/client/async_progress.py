"""What the client's asyncio connections lack: a timeout of progress, and writes that do not lose a cancellation.

With a timeout of progress an exchange lasts for as long as its bytes keep arriving. Blocking sockets have it by
nature: it is one of each `recv`.
"""

import asyncio
from types import TracebackType
from typing import Any, Self

__all__ = ["ProgressTimeout", "noting_arrivals"]


def noting_arrivals(kind: type[Any]) -> type[Any]:
    """A class of connections that also know, as `arrived_at`, when bytes last came, by the time of the event loop.

    A task that is cancelled as it writes is cancelled. The client writes through `wait_for`, which in Python 3.11
    returns as if nothing had happened where the cancellation comes at the moment of its success.
    """

    class Connection(kind):  # type: ignore[misc] # the client's classes differ by scheme
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
            await super().send_packed_command(*args, **options)
            if task and task.cancelling() > before:
                raise asyncio.CancelledError

    return Connection


class ProgressTimeout:
    """Raises TimeoutError in its block once nothing has come over a connection for `timeout_s` seconds.

    It has one timer for the whole exchange, which is set again only when it fires.
    """

    __slots__ = ("_connection", "_limit", "_loop", "_timeout_s", "_timer")

    def __init__(self, connection: Any, timeout_s: float) -> None:
        self._connection = connection
        self._timeout_s = timeout_s
        self._limit = asyncio.timeout(None)
        self._loop = asyncio.get_running_loop()

    async def __aenter__(self) -> Self:
        await self._limit.__aenter__()
        self._timer = self._loop.call_later(self._timeout_s, self._look)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        await self._limit.__aexit__(kind, error, trace)

    def _look(self) -> None:
        quiet_until = self._connection.arrived_at + self._timeout_s
        if quiet_until > self._loop.time():
            self._timer = self._loop.call_at(quiet_until, self._look)
        else:
            self._limit.reschedule(self._loop.time())
