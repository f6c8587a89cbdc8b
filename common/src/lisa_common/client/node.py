"""One server, for the blocking shell: connections and calls. `async_node` is its asyncio twin."""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import redis
import redis.exceptions
from redis.retry import Retry

from lisa_common.client.address import Address
from lisa_common.client.connection_pool import ConnectionPool, ConnectionPools, Place
from lisa_common.client.embedded.connection import EmbeddedConnection
from lisa_common.client.exchanges import quick
from lisa_common.client.options import NO_RETRY, UNBOUNDED, Connecting, check_options, connection_options
from lisa_common.client.sentinel import SentinelConnection, TlsSentinelConnection
from lisa_common.client.tls import TlsConnection
from lisa_common.client.translation import lisa_error, must_reconnect, unreachable
from lisa_common.client.wire import (
    check_greeting,
    greeting,
    has_errors,
    merge_waits,
    pack,
    repeats,
)
from lisa_common.errors import LisaError, OutcomeUnknown, Unreachable
from lisa_common.protocol.call import Call

__all__ = ["Node"]

T = TypeVar("T")

_KINDS: dict[str, type[Any]] = {
    "redis": redis.Connection,
    "rediss": TlsConnection,
    "unix": redis.UnixDomainSocketConnection,
    "embedded": EmbeddedConnection,
    "redis+sentinel": SentinelConnection,
    "rediss+sentinel": TlsSentinelConnection,
}
_CLASSES = {scheme: quick(kind) for scheme, kind in _KINDS.items()}


class Node:
    """At most `max_connections` to one server, safe to share among threads, which wait while all are in use.

    The server's errors are replies. Errors of the connection are raised, as LisaErrors.
    """

    def __init__(self, address: Address, connecting: Connecting) -> None:
        self._address = address
        self._refusals = address.refusals
        self._timeout_s = connecting.timeout_s
        options = connection_options(address, connecting)
        limit = options.pop("max_connections", connecting.max_connections)
        factory = redis.ConnectionPool(
            connection_class=_CLASSES[address.scheme],
            max_connections=UNBOUNDED,
            retry=Retry(NO_RETRY, 0),
            **options,
        )
        check_options(factory, address)
        # A connection that may be broken is tested with a PING first: if that fails, the request was certainly not
        # carried out.
        self._suspect = True
        # Connections stay here, not in the client's pool, whose bookkeeping takes a sixth of the time of a send.
        self._pools = ConnectionPools(limit, factory.make_connection)

    def ask(self, calls: Sequence[Call[Any]], meanwhile: Callable[[], object] | None = None) -> list[Any]:
        """Makes calls in one round trip. Returns their replies. Loads scripts that the server lacks.

        `meanwhile` is called between the calls and their replies.
        """
        if meanwhile is not None:
            return self._ask_meanwhile(calls, meanwhile)
        if self._suspect:
            self._probe()
        # The error handling of `_attempt`, without its cost.
        try:
            replies = self._exchange(calls)
        except (redis.exceptions.RedisError, OSError) as error:
            raise self._failed(error) from error
        return self._complete(calls, replies) if has_errors(replies) else replies

    def send(self, calls: Sequence[Call[Any]]) -> Place:
        """The first half of `ask`. Returns the place whose connection will bring the replies."""
        if self._suspect:
            self._probe()
        return self._attempt(lambda: self._send(calls))

    @property
    def sends_at_once(self) -> bool:
        """Whether `send` has an open connection, and need not wait for the server to accept one."""
        connection = self._pools[os.getpid()].next
        return not self._suspect and connection is not None and connection._sock is not None  # noqa: SLF001 - there is no public way

    def receive(self, place: Place, calls: Sequence[Call[Any]]) -> list[Any]:
        """The second half of `ask`."""
        replies = self._attempt(lambda: self._receive(place, calls))
        return self._complete(calls, replies) if has_errors(replies) else replies

    def _ask_meanwhile(self, calls: Sequence[Call[Any]], meanwhile: Callable[[], object]) -> list[Any]:
        place = self.send(calls)
        try:
            meanwhile()
        except BaseException:
            self.end(place)
            raise
        return self.receive(place, calls)

    def receive_first(self, place: Place) -> Any:
        """Receives the first reply only; the caller must receive the others."""
        return self._attempt(lambda: self._receive_first(place))

    def end(self, place: Place) -> None:
        """Ends a call. Its connection is closed, unless all replies have come: late ones must reach no other call."""
        try:
            if place.connection is not None:
                place.connection.disconnect()
        finally:
            self._pools[os.getpid()].leave(place)

    def _probe(self) -> None:
        self._attempt(self._ping, unreachable_at=self._address)
        self._suspect = False

    def _exchange(self, calls: Sequence[Call[Any]]) -> list[Any]:
        # Both halves at once, as most calls are: one look at the process and the waits.
        made, positions = merge_waits(calls)
        pool = self._pools[os.getpid()]
        place = self._enter(pool)
        try:
            place.connection.send_packed(pack(made, with_texts=self._refusals.sends_texts))
            replies = place.connection.read_replies(len(made))
            pool.keep(place)
        finally:
            self.end(place)
        return replies if positions is None else [replies[at] for at in positions]

    def _ping(self) -> None:
        check_greeting(self._exchange(greeting(self._address.channel)), self._refusals)

    def _send(self, calls: Sequence[Call[Any]]) -> Place:
        place = self._enter(self._pools[os.getpid()])
        try:
            place.connection.send_packed(pack(merge_waits(calls)[0], with_texts=self._refusals.sends_texts))
        except BaseException:
            self.end(place)
            raise
        return place

    def _receive(self, place: Place, calls: Sequence[Call[Any]]) -> list[Any]:
        made, positions = merge_waits(calls)
        try:
            replies = place.connection.read_replies(len(made))
            self._pools[os.getpid()].keep(place)
        finally:
            self.end(place)
        return replies if positions is None else [replies[at] for at in positions]

    def _receive_first(self, place: Place) -> Any:
        try:
            [reply] = place.connection.read_replies(1)
        except BaseException:
            self.end(place)
            raise
        return reply

    def _complete(self, calls: Sequence[Call[Any]], replies: list[Any]) -> list[Any]:
        """Repeats calls whose scripts the server lacks or refuses to run by SHA."""
        steps = repeats(calls, replies, self._refusals)
        with suppress(StopIteration):
            step = next(steps)
            while True:
                try:
                    answer = self._attempt(partial(self._exchange, step))
                except LisaError as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
        if must_reconnect(replies):
            self._leave()
        return replies

    def _enter(self, pool: ConnectionPool) -> Place:
        """Returns a place whose connection is ready. Where it raises, nothing of a request was sent."""
        place = pool.enter(self._timeout_s)
        try:
            if not place.connection.is_ready():
                place.connection.prepare()
        except BaseException as error:
            self.end(place)
            if isinstance(error, redis.exceptions.RedisError | OSError):
                raise self._failed(error, self._address) from error
            raise
        return place

    def _attempt(self, ask: Callable[[], T], unreachable_at: Address | None = None) -> T:
        try:
            return ask()
        except (redis.exceptions.RedisError, OSError) as error:
            raise self._failed(error, unreachable_at) from error

    def _failed(self, error: Exception, unreachable_at: Address | None = None) -> LisaError:
        """The error to raise."""
        translated = unreachable(error, unreachable_at) if unreachable_at else lisa_error(error)
        if isinstance(translated, OutcomeUnknown | Unreachable):
            self._leave()
        return translated

    def _leave(self) -> None:
        """Breaks all idle connections: after a fail-over the next may lead to another server."""
        self._suspect = True
        self._pools[os.getpid()].break_idle()

    def close(self) -> None:
        """Closes all connections."""
        self._pools[os.getpid()].close()
