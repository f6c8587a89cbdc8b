"""Adds to the Redis client's asyncio connections quick exchanges with a progress timeout, which keep a cancellation.

With a progress timeout an exchange may last as long as bytes keep arriving. Blocking sockets time out this way anyway:
their timeout applies to each `recv`.
"""

import asyncio
import math
from contextlib import suppress
from typing import Any

import hiredis
import redis

from lisa_common.client.credentials import RENEW_S
from lisa_common.client.options import CHECK_S, IDLE_S, PING
from lisa_common.client.refusals import Refusals
from lisa_common.client.translation import is_command_refused, is_reply
from lisa_common.model.needs import Optional

__all__ = ["hardened"]


def hardened(kind: type[Any]) -> type[Any]:
    """A subclass with what the Redis client lacks: quick exchanges, one error for closed connections, cancellations.

    `send_packed` and `read_replies` make exchanges without the client's own tasks, timers and layers. A write to a
    closed connection raises the client's ConnectionError with any event loop. A cancellation during a write is kept:
    the Redis client writes through `wait_for`, which in Python 3.11 loses one that comes at the moment of its success.
    """
    return type("Connection", (_Hardened, kind), {})


class _Hardened:
    """What `hardened` puts before a class of connections."""

    arrived_at = 0.0
    """When bytes last arrived, by the event loop's clock."""
    _reading_since: float | None = None
    """Since when replies are being read; None while none are."""
    _watch: asyncio.TimerHandle | None = None
    """One timer for many exchanges: it is started anew only when it fires."""
    _login_until = math.inf
    """Until when its credentials are good, by the same clock."""
    _fresh_until = 0.0
    """Until when it need not be checked by a PING, by the event loop's clock."""

    def __init__(self, *args: Any, refusals: Refusals | None = None, **options: Any) -> None:
        self._refusals = refusals or Refusals()
        super().__init__(*args, **options)

    async def check_health(self: Any) -> None:
        """As the client's; but a server that refuses PING answers, too."""
        with suppress(redis.exceptions.ResponseError):
            await super().check_health()  # type: ignore[misc]

    async def on_connect_check_health(self: Any, check_health: bool = True) -> None:  # noqa: FBT001, FBT002 - as the client has it
        """Logs in, and gives the connection its name, unless the server refuses names."""
        if Optional.NAME in self._refusals:
            self.client_name = None
        try:
            await super().on_connect_check_health(check_health)  # type: ignore[misc]
        except redis.exceptions.ResponseError as error:
            if not self.client_name or not is_command_refused(error):
                raise
            self._refusals.note(Optional.NAME, error)
            await self.on_connect_check_health(check_health)
        if self.credential_provider:
            self._login_until = self._clock() + RENEW_S

    async def _connect(self: Any) -> None:
        await super()._connect()  # type: ignore[misc]
        self._loop = asyncio.get_running_loop()
        feed, clock = self._reader.feed_data, self._loop.time

        def note(data: bytes) -> None:
            self.arrived_at = clock()
            feed(data)

        self._clock, self._reader.feed_data = clock, note
        # The timer of a former connection may belong to an event loop that has ended.
        self._watch = None

    async def send_packed_command(self, *args: Any, **options: Any) -> None:
        task = asyncio.current_task()
        before = task.cancelling() if task else 0
        try:
            await super().send_packed_command(*args, **options)  # type: ignore[misc]
        except RuntimeError as error:
            raise _closed(error) from error
        if task and task.cancelling() > before:
            raise asyncio.CancelledError

    async def is_ready(self: Any) -> bool:
        """Whether it is open and in step with the server, and has not long been idle."""
        return self.is_connected and self._clock() <= self._fresh_until and not await self._is_broken()

    async def prepare(self: Any) -> None:
        """Reconnects, unless the connection is open and answers a PING."""
        if await self._is_broken() or not await self._answers():
            await self.disconnect(nowait=True)
            await self.connect()
        elif self._clock() > self._login_until:
            await self._log_in_again()

    async def _log_in_again(self: Any) -> None:
        """Sends the credentials of now, before the server ends those of the connection."""
        self._login_until = self._clock() + RENEW_S
        login = await self.credential_provider.get_credentials_async()
        await self.send_packed(hiredis.pack_command(("AUTH", *login)))
        await self._parser.read_response()

    async def _answers(self: Any) -> bool:
        try:
            async with asyncio.timeout(min(CHECK_S, self.socket_timeout or CHECK_S)):
                await self.send_packed(PING)
                await self._parser.read_response()
        except redis.exceptions.ResponseError:
            # A server that refuses PING answers, too.
            return True
        except (redis.exceptions.RedisError, OSError):
            return False
        return True

    async def _is_broken(self: Any) -> bool:
        """Whether it is closed, also by the server, or the server has sent data without a request."""
        if not self.is_connected:
            return True
        # Before version 8 the Redis client uses the other name.
        can_read = getattr(self, "can_read", None) or self.can_read_destructive
        try:
            return bool(await can_read())
        except (redis.exceptions.RedisError, OSError):
            return True

    async def send_packed(self: Any, data: bytes) -> None:
        """Writes packed commands, on a connection that is ready."""
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

    async def read_replies(self: Any, count: int, timeout_s: float) -> list[Any]:
        """So many replies, errors of the server among them.

        Raises the client's TimeoutError once nothing has arrived for `timeout_s` seconds.
        """
        self._reading_since, self._timeout_s = self._clock(), timeout_s
        if self._watch is None:
            self._watch = self._loop.call_later(timeout_s, self._check_progress, self._reader)
        read, replies = self._parser.read_response, []
        try:
            for _ in range(count):
                try:
                    replies.append(await read())
                except redis.exceptions.ConnectionError as error:
                    if not is_reply(error):
                        raise
                    replies.append(error)
        finally:
            self._reading_since = None
        fresh_until = self._clock() + (IDLE_S if self.health_check_interval else math.inf)
        self._fresh_until = min(fresh_until, self._login_until)
        return replies

    def _check_progress(self: Any, reader: asyncio.StreamReader) -> None:
        if reader is not self._reader:
            # It is of a former connection.
            return
        self._watch = None
        if self._reading_since is None:
            return
        quiet_until = max(self.arrived_at, self._reading_since) + self._timeout_s
        if quiet_until > self._clock():
            self._watch = self._loop.call_at(quiet_until, self._check_progress, reader)
        else:
            # The read raises it; the caller then breaks the connection.
            reader.set_exception(redis.exceptions.TimeoutError("Timeout reading from socket"))


def _closed(error: RuntimeError) -> Exception:
    """The error of a write to a connection that has ended: uvloop raises a RuntimeError, asyncio a ConnectionError."""
    return redis.exceptions.ConnectionError(str(error)) if "closed" in str(error) else error
