"""One server, for the asyncio shell: connections and calls. `node` is its blocking twin."""

from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import Any, TypeVar

import redis.asyncio
import redis.exceptions
from redis.asyncio.retry import Retry

from lisa_common.client.address import Address
from lisa_common.client.async_progress import hardened
from lisa_common.client.async_subscription import subscribe
from lisa_common.client.connection_pool import AsyncConnectionPool, Place
from lisa_common.client.embedded.connection import AsyncEmbeddedConnection
from lisa_common.client.options import NO_RETRY, UNBOUNDED, Connecting, check_options, connection_options
from lisa_common.client.sentinel import AsyncSentinelConnection, AsyncTlsSentinelConnection
from lisa_common.client.tls import AsyncTlsConnection
from lisa_common.client.translation import lisa_error, must_reconnect, unreachable
from lisa_common.client.wire import (
    check_greeting,
    check_replies,
    greeting,
    has_errors,
    merge_waits,
    pack,
    repeats,
)
from lisa_common.errors import AccessDenied, LisaError, OutcomeUnknown, Unreachable
from lisa_common.model.keys import ShardKeys
from lisa_common.model.needs import Optional
from lisa_common.protocol.call import Call, command

__all__ = ["AsyncNode"]

T = TypeVar("T")

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

    def __init__(self, address: Address, connecting: Connecting) -> None:
        self._address = address
        self._refusals = address.refusals
        options = connection_options(address, connecting)
        limit = options.pop("max_connections", connecting.max_connections)
        factory = redis.asyncio.ConnectionPool(
            connection_class=_CLASSES[address.scheme],
            max_connections=UNBOUNDED,
            retry=Retry(NO_RETRY, 0),
            **options,
        )
        check_options(factory, address)
        self._pool = AsyncConnectionPool(limit, factory.make_connection)
        self._client = redis.asyncio.Redis.from_pool(factory)
        self._suspect = True
        self._timeout_s = connecting.timeout_s

    @property
    def arrived_at(self) -> float:
        """When bytes last arrived on one of the connections, by the event loop's clock; 0.0 without any."""
        return max((connection.arrived_at for connection in self._pool.connections), default=0.0)

    async def ask(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """Makes calls in one round trip. Returns their replies. Loads scripts that the server lacks."""
        if self._suspect:
            await self._probe()
        # The error handling of `_attempt`, without its cost.
        try:
            replies = await self._exchange(calls)
        except (redis.exceptions.RedisError, OSError) as error:
            raise (await self._failed(error)) from error
        return await self._complete(calls, replies) if has_errors(replies) else replies

    async def send(self, calls: Sequence[Call[Any]]) -> Place:
        """The first half of `ask`. Returns the place whose connection will bring the replies."""
        if self._suspect:
            await self._probe()
        return await self._attempt(self._send(calls))

    async def receive(self, place: Place, calls: Sequence[Call[Any]]) -> list[Any]:
        """The second half of `ask`."""
        replies = await self._attempt(self._receive(place, calls))
        return await self._complete(calls, replies) if has_errors(replies) else replies

    async def receive_first(self, place: Place) -> Any:
        """Receives the first reply only; the caller must receive the others."""
        return await self._attempt(self._receive_first(place))

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
            translated = lisa_error(error)
            if isinstance(translated, AccessDenied):
                self._refusals.note(Optional.SUBSCRIBE, translated)
            raise translated from error

    async def _publish(self, channel: str, data: bytes) -> None:
        try:
            check_replies(await self.ask([command("PUBLISH", channel, data)]))
        except AccessDenied as error:
            self._refusals.note(Optional.PUBLISH, error)
            raise

    async def _probe(self) -> None:
        await self._attempt(self._ping(), unreachable_at=self._address)
        self._suspect = False

    async def _ping(self) -> None:
        # Not through the pool, whose connections `_leave` may break at the same moment for another task.
        check_greeting(await self._exchange(greeting(self._address.channel)), self._refusals)

    async def _exchange(self, calls: Sequence[Call[Any]]) -> list[Any]:
        return await self._receive(await self._send(calls), calls)

    async def _send(self, calls: Sequence[Call[Any]]) -> Place:
        place = await self._enter()
        try:
            await place.connection.send_packed(pack(merge_waits(calls)[0], with_texts=self._refusals.sends_texts))
        except BaseException:
            await self._end(place)
            raise
        return place

    async def _receive(self, place: Place, calls: Sequence[Call[Any]]) -> list[Any]:
        made, positions = merge_waits(calls)
        try:
            replies = await place.connection.read_replies(len(made), self._timeout_s)
            self._pool.keep(place)
        finally:
            await self._end(place)
        return replies if positions is None else [replies[at] for at in positions]

    async def _receive_first(self, place: Place) -> Any:
        try:
            [reply] = await place.connection.read_replies(1, self._timeout_s)
        except BaseException:
            await self._end(place)
            raise
        return reply

    async def _complete(self, calls: Sequence[Call[Any]], replies: list[Any]) -> list[Any]:
        """Repeats calls whose scripts the server lacks or refuses to run by SHA."""
        steps = repeats(calls, replies, self._refusals)
        with suppress(StopIteration):
            step = next(steps)
            while True:
                try:
                    answer = await self._attempt(self._exchange(step))
                except LisaError as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
        if must_reconnect(replies):
            await self._leave()
        return replies

    async def _enter(self) -> Place:
        """Returns a place whose connection is ready. Where it raises, nothing of a request was sent."""
        place = await self._pool.enter(self._timeout_s)
        try:
            if not await place.connection.is_ready():
                await place.connection.prepare()
        except BaseException as error:
            await self._end(place)
            if isinstance(error, redis.exceptions.RedisError | OSError):
                raise (await self._failed(error, self._address)) from error
            raise
        return place

    async def _end(self, place: Place) -> None:
        """Ends a call. Its connection is closed, unless all replies have come: late ones must reach no other call."""
        try:
            if place.connection is not None:
                await place.connection.disconnect(nowait=True)
        finally:
            self._pool.leave(place)

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
        await self._pool.break_idle()

    async def close(self) -> None:
        """Closes all connections."""
        await self._pool.close()
        await self._client.aclose()
