"""One server, for the asyncio shell: connections and calls. `node` is its blocking twin."""

from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, TypeVar

import redis.asyncio
import redis.exceptions
from redis.asyncio.retry import Retry

from lisa_common.client.address import Address
from lisa_common.client.async_progress import hardened
from lisa_common.client.async_subscription import subscribe
from lisa_common.client.embedded.connection import AsyncEmbeddedConnection
from lisa_common.client.lending import AsyncIdleConnections
from lisa_common.client.options import NO_RETRY, UNBOUNDED, check_options, connection_options
from lisa_common.client.sentinel import AsyncSentinelConnection, AsyncTlsSentinelConnection
from lisa_common.client.tls import AsyncTlsConnection
from lisa_common.client.translation import lisa_error, must_reconnect, unreachable
from lisa_common.client.wire import LOADS, check_replies, forgotten, has_errors, merge_waits, pack, script_loads
from lisa_common.errors import AccessDenied, LisaError, OutcomeUnknown, Unreachable
from lisa_common.model.keys import ShardKeys
from lisa_common.protocol.call import Call, command
from lisa_common.settings import MAX_CONNECTIONS

__all__ = ["AsyncNode"]

T = TypeVar("T")

_PING: Call[Any] = command("PING")

_KINDS: dict[str, type[Any]] = {
    "redis": redis.asyncio.Connection,
    "rediss": AsyncTlsConnection,
    "unix": redis.asyncio.UnixDomainSocketConnection,
    "embedded": AsyncEmbeddedConnection,
    "redis+sentinel": AsyncSentinelConnection,
    "rediss+sentinel": AsyncTlsSentinelConnection,
}
_CLASSES = {scheme: hardened(kind) for scheme, kind in _KINDS.items()}


class AsyncNode:
    """Connections to one server, for the tasks of one event loop. Same guarantees as `Node`.

    The subscription of `listen` has a connection of its own.
    """

    def __init__(
        self, address: Address, *, name: str, timeout_s: float, max_connections: int = MAX_CONNECTIONS
    ) -> None:
        self._address = address
        options = connection_options(address, name=name, timeout_s=timeout_s)
        self._idle = AsyncIdleConnections(options.pop("max_connections", max_connections))
        pool = redis.asyncio.ConnectionPool(
            connection_class=_CLASSES[address.scheme],
            max_connections=UNBOUNDED,
            retry=Retry(NO_RETRY, 0),
            **options,
        )
        check_options(pool, address)
        self._client = redis.asyncio.Redis.from_pool(pool)
        self._suspect = True
        self._timeout_s = timeout_s

    @property
    def arrived_at(self) -> float:
        """When bytes last arrived on one of the connections, by the event loop's clock; 0.0 without any."""
        return max((connection.arrived_at for connection in self._idle.existing), default=0.0)

    async def ask(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """Makes calls in one round trip. Result: their replies. Loads scripts that the server lacks."""
        if self._suspect:
            await self._probe()
        # The error handling of `_attempt`, without its cost.
        try:
            replies = await self._exchange(calls)
        except (redis.exceptions.RedisError, OSError) as error:
            raise (await self._failed(error)) from error
        return await self._complete(calls, replies) if has_errors(replies) else replies

    async def send(self, calls: Sequence[Call[Any]]) -> Any:
        """The first half of `ask`. Result: the connection, from which the caller must receive the replies."""
        if self._suspect:
            await self._probe()
        return await self._attempt(self._send(calls))

    async def receive(self, connection: Any, calls: Sequence[Call[Any]]) -> list[Any]:
        """The second half of `ask`."""
        replies = await self._attempt(self._receive(connection, calls))
        return await self._complete(calls, replies) if has_errors(replies) else replies

    async def receive_first(self, connection: Any) -> Any:
        """Receives the first reply only; the caller must receive the others."""
        return await self._attempt(self._receive_first(connection))

    def node_of(self, keys: ShardKeys) -> object:  # noqa: ARG002 - this server has all keys
        """See `AsyncConnection.node_of`."""
        return None

    async def survey(self, calls: Sequence[Call[Any]]) -> dict[str, list[Any]]:
        """See `AsyncConnection.survey`."""
        return {"": await self.ask(calls)}

    async def listen(self, channel: str) -> AsyncGenerator[bytes | None]:
        """See `AsyncConnection.listen`."""
        try:
            async with aclosing(subscribe(self._client, channel, partial(self._publish, channel))) as messages:
                async for message in messages:
                    yield message
        except (redis.exceptions.RedisError, OSError) as error:
            raise lisa_error(error) from error

    async def _publish(self, channel: str, data: bytes) -> None:
        check_replies(await self.ask([command("PUBLISH", channel, data)]))

    async def _probe(self) -> None:
        await self._attempt(self._ping(), unreachable_at=self._address)
        self._suspect = False

    async def _ping(self) -> None:
        # Not through the pool, whose connections `_leave` may break at the same moment for another task.
        [reply] = await self._exchange([_PING])
        if isinstance(reply, Exception):
            raise reply

    async def _exchange(self, calls: Sequence[Call[Any]]) -> list[Any]:
        return await self._receive(await self._send(calls), calls)

    async def _send(self, calls: Sequence[Call[Any]]) -> Any:
        connection = await self._borrow()
        try:
            await connection.send_packed(pack(merge_waits(calls)[0]))
        except BaseException:
            await self._give_up(connection)
            raise
        return connection

    async def _receive(self, connection: Any, calls: Sequence[Call[Any]]) -> list[Any]:
        made, places = merge_waits(calls)
        try:
            replies = await connection.read_replies(len(made), self._timeout_s)
        except BaseException:
            await self._give_up(connection)
            raise
        self._idle.append(connection)
        return replies if places is None else [replies[at] for at in places]

    async def _receive_first(self, connection: Any) -> Any:
        try:
            [reply] = await connection.read_replies(1, self._timeout_s)
        except BaseException:
            await self._give_up(connection)
            raise
        return reply

    async def _complete(self, calls: Sequence[Call[Any]], replies: list[Any]) -> list[Any]:
        """Repeats calls for which the server lacked a script."""
        for _ in range(LOADS):
            positions = forgotten(calls, replies)
            left = [calls[at] for at in positions]
            if not left or not await self._load(left):
                break
            for at, reply in zip(positions, await self._attempt(self._exchange(left)), strict=True):
                replies[at] = reply
        if must_reconnect(replies):
            await self._leave()
        return replies

    async def _load(self, calls: Sequence[Call[Any]]) -> bool:
        """Loads the scripts of these calls. Result: False if the user may not."""
        try:
            check_replies(await self._attempt(self._exchange(script_loads(calls))))
        except AccessDenied:
            return False
        return True

    async def _borrow(self) -> Any:
        idle = self._idle
        lent = idle.pop() if idle.has_free else await idle.wait(self._timeout_s)
        connection = lent or idle.track(lent, self._client.connection_pool.make_connection())  # type: ignore[no-untyped-call]
        try:
            if not await connection.is_ready():
                await connection.prepare()
        except BaseException as error:
            await self._give_up(connection)
            if isinstance(error, redis.exceptions.RedisError | OSError):
                # Nothing of the request was sent.
                raise (await self._failed(error, self._address)) from error
            raise
        return connection

    async def _give_up(self, connection: Any) -> None:
        """Breaks a connection on which replies may still arrive; a new one takes its place."""
        try:
            await connection.disconnect(nowait=True)
        finally:
            self._idle.replace(connection)

    async def _attempt(self, ask: Awaitable[T], unreachable_at: Address | None = None) -> T:
        try:
            return await ask
        except (redis.exceptions.RedisError, OSError) as error:
            raise (await self._failed(error, unreachable_at)) from error

    async def _failed(self, error: Exception, unreachable_at: Address | None = None) -> LisaError:
        """The error to raise."""
        translated = unreachable(error, unreachable_at) if unreachable_at else lisa_error(error)
        if isinstance(translated, OutcomeUnknown | Unreachable):
            await self._leave()
        return translated

    async def _leave(self) -> None:
        """Breaks all idle connections: after a fail-over the next may lead to another server."""
        self._suspect = True
        await self._idle.disconnect()

    async def close(self) -> None:
        """Closes all connections."""
        await self._idle.close()
        await self._client.aclose()
