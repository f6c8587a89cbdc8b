"""The asyncio shell: drives flows over `redis.asyncio.Redis`. `lisa_common.connection` is its blocking twin."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import redis.asyncio
import redis.exceptions
from redis.asyncio.retry import Retry

from lisa_common.address import Address, read_url
from lisa_common.call import Call, Flow
from lisa_common.development import AsyncEmbeddedConnection
from lisa_common.errors import LisaError, OutcomeUnknown, Refused, Unreachable
from lisa_common.sentinel import AsyncSentinelConnection, AsyncTlsSentinelConnection
from lisa_common.server import (
    NO_RETRY,
    RECONNECT,
    check_options,
    connection_options,
    forgotten,
    is_no_master,
    lisa_error,
    pack,
    read_reply,
    unreachable,
)
from lisa_common.settings import Settings
from lisa_common.tls import NO_TLS, AsyncTlsConnection, Tls

__all__ = ["AsyncConnection", "cancel_all"]

T = TypeVar("T")

_CLASSES = {
    "redis": redis.asyncio.Connection,
    "rediss": AsyncTlsConnection,
    "unix": redis.asyncio.UnixDomainSocketConnection,
    "embedded": AsyncEmbeddedConnection,
    "redis+sentinel": AsyncSentinelConnection,
    "rediss+sentinel": AsyncTlsSentinelConnection,
}


class AsyncConnection:
    """A pool of connections to one server, for the tasks of one event loop. Promises what `Connection` promises."""

    def __init__(self, url: str, *, name: str = "lisa", timeout_s: float = 10.0, tls: Tls = NO_TLS) -> None:
        self._address = read_url(url, tls)
        pool = redis.asyncio.ConnectionPool(
            connection_class=_CLASSES[self._address.scheme],
            retry=Retry(NO_RETRY, 0),
            **connection_options(self._address, name=name, timeout_s=timeout_s),
        )
        check_options(pool, self._address)
        self.client = redis.asyncio.Redis.from_pool(pool)
        self.client.response_callbacks.clear()
        self._suspect = True
        self._timeout_s = timeout_s
        self._idle: list[Any] = []

    @classmethod
    def of(cls, settings: Settings, *, name: str, url: str | None = None, blocking_s: float = 0.0) -> Self:
        """A connection as the settings have it, or to `url`; calls may wait at the server for `blocking_s` seconds."""
        return cls(
            url or settings.redis_url.get_secret_value(),
            name=name,
            timeout_s=settings.timeout_s + blocking_s,
            tls=settings.tls,
        )

    async def run(self, flow: Flow[T], *, patience_s: float = 0.0) -> T:
        """Drives a flow to its result."""
        deadline = time.monotonic() + patience_s
        try:
            step = next(flow)
            while True:
                calls = (step,) if isinstance(step, Call) else step
                try:
                    results = await self._patiently(calls, deadline)
                except LisaError as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(results[0] if isinstance(step, Call) else results)
        except StopIteration as stop:
            result: T = stop.value
            return result

    async def call(self, call: Call[T], *, patience_s: float = 0.0) -> T:
        """Makes one call."""
        result: T = (await self._patiently((call,), time.monotonic() + patience_s))[0]
        return result

    async def _patiently(self, calls: Sequence[Call[Any]], deadline: float) -> list[Any]:
        failures, unknown = 0, None
        while True:
            try:
                return await self.execute(calls)
            except (Unreachable, Refused, OutcomeUnknown) as error:
                failures += 1
                delay = RECONNECT.compute(failures)
                unknown = error if isinstance(error, OutcomeUnknown) else unknown
                unsafe = unknown and not all(c.repeatable for c in calls)
                if unsafe or time.monotonic() + delay > deadline:
                    if unknown is None or unknown is error:
                        raise
                    # That the last try did nothing says nothing of the tries before it.
                    raise unknown from error
                await asyncio.sleep(delay)

    async def execute(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """Makes calls in one round trip; raises the first error among their replies."""
        results = await self.execute_each(calls)
        for result in results:
            if isinstance(result, LisaError):
                raise result
        return results

    async def execute_each(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """Makes calls in one round trip; a call that the server answers with an error has it as its result.

        Loads scripts that the server does not have. Raises what concerns the connection as a whole.
        """
        if self._suspect:
            await self._attempt(self.client.ping(), unreachable_at=self._address)
            self._suspect = False
        replies = await self._attempt(self._send(calls))
        if again := forgotten(calls, replies):
            scripts = {call.script for call in calls if call.script}
            for script in scripts:
                await self._attempt(self.client.script_load(script.text))
            repeated = await self._attempt(self._send([calls[at] for at in again]))
            for at, reply in zip(again, repeated, strict=True):
                replies[at] = reply
        if is_no_master(replies):
            await self._leave()
        return [read_reply(call, reply) for call, reply in zip(calls, replies, strict=True)]

    async def listen(self, channel: str) -> AsyncIterator[bytes | None]:
        """What is published on a channel from now on; None first, once it is subscribed, and at least once a second.

        Raises when the subscription breaks.
        """
        try:
            async with self.client.pubsub(ignore_subscribe_messages=True) as subscription:
                await subscription.subscribe(channel)
                yield None
                while True:
                    message = await subscription.get_message(timeout=1.0)
                    yield message["data"] if message else None
        except (redis.exceptions.RedisError, OSError) as error:
            raise lisa_error(error) from error

    async def _send(self, calls: Sequence[Call[Any]]) -> list[Any]:
        connection = await self._borrow()
        try:
            await connection.send_packed_command(pack(calls))
            # One limit for all replies, as the client would start and stop a timer for each.
            async with asyncio.timeout(self._timeout_s):
                return [await _reply(connection) for _ in calls]
        except BaseException:
            # There may be replies on their way that nobody waits for.
            await connection.disconnect(nowait=True)
            raise
        finally:
            self._idle.append(connection)

    async def _borrow(self) -> Any:
        if not self._idle:
            return await self.client.connection_pool.get_connection()  # type: ignore[no-untyped-call]
        connection = self._idle.pop()
        if await _is_spoilt(connection):
            await connection.disconnect(nowait=True)
        return connection

    async def _attempt(self, ask: Awaitable[T], unreachable_at: Address | None = None) -> T:
        try:
            return await ask
        except (redis.exceptions.RedisError, OSError) as error:
            found = unreachable(error, unreachable_at) if unreachable_at else lisa_error(error)
            if isinstance(found, OutcomeUnknown | Unreachable):
                await self._leave()
            raise found from error

    async def _leave(self) -> None:
        """Breaks all connections that are not in use: the next may lead elsewhere, after a fail-over."""
        self._suspect = True
        await self.client.connection_pool.disconnect(inuse_connections=False)
        taken, self._idle = self._idle, []
        for connection in taken:
            await connection.disconnect(nowait=True)
        self._idle += taken

    async def close(self) -> None:
        """Closes all connections of the pool."""
        await self.client.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


async def _is_spoilt(connection: Any) -> bool:
    """Whether the server has closed it, or something came that nobody asked for."""
    # Before version 8 the client has it by another name.
    can_read = getattr(connection, "can_read", None) or connection.can_read_destructive
    try:
        return bool(await can_read())
    except (redis.exceptions.RedisError, OSError):
        return True


async def _reply(connection: Any) -> Any:
    try:
        return await connection.read_response(timeout=math.inf)
    except redis.exceptions.ResponseError as error:
        return error


async def cancel_all(*tasks: "asyncio.Task[Any]") -> None:
    """Cancels tasks and returns once all have ended, however they did.

    Cancelling once is not enough: in Python 3.11 `wait_for`, through which the Redis client writes, loses one that
    comes at the moment of its success.
    """
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        ended, pending = await asyncio.wait(pending, timeout=0.1)
        for task in ended:
            if not task.cancelled():
                task.exception()
