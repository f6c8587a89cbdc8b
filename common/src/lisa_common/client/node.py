"""One server, for the blocking shell: connections to it, and calls over them. `async_node` is the twin."""

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import redis
import redis.exceptions
from redis.retry import Retry

from lisa_common.client.address import Address
from lisa_common.client.embedded.connection import EmbeddedConnection
from lisa_common.client.lending import IdleConnectionsByProcess
from lisa_common.client.options import NO_RETRY, UNBOUNDED, check_options, connection_options
from lisa_common.client.sentinel import SentinelConnection, TlsSentinelConnection
from lisa_common.client.tls import TlsConnection
from lisa_common.client.translation import is_no_master, lisa_error, unreachable
from lisa_common.client.wire import LOADS, check_replies, forgotten, has_errors, pack
from lisa_common.errors import AccessDenied, OutcomeUnknown, Unreachable
from lisa_common.protocol.call import Call, command
from lisa_common.settings import MAX_CONNECTIONS

__all__ = ["Node"]

T = TypeVar("T")

_PING: Call[Any] = command("PING")

_CLASSES = {
    "redis": redis.Connection,
    "rediss": TlsConnection,
    "unix": redis.UnixDomainSocketConnection,
    "embedded": EmbeddedConnection,
    "redis+sentinel": SentinelConnection,
    "rediss+sentinel": TlsSentinelConnection,
}


class Node:
    """At most `max_connections` to one server, safe to share among threads, which wait while all are in use.

    What the server answers is a reply, errors too. What concerns the connection is raised, as a LisaError.
    """

    def __init__(
        self, address: Address, *, name: str, timeout_s: float, max_connections: int = MAX_CONNECTIONS
    ) -> None:
        self._address = address
        self._timeout_s = timeout_s
        options = connection_options(address, name=name, timeout_s=timeout_s)
        limit = options.pop("max_connections", max_connections)
        self._pool = redis.ConnectionPool(
            connection_class=_CLASSES[address.scheme],
            max_connections=UNBOUNDED,
            retry=Retry(NO_RETRY, 0),
            **options,
        )
        check_options(self._pool, address)
        # A connection that may be broken is tried with a PING first, so that a request which finds no server is known
        # not to have been carried out.
        self._suspect = True
        # Connections are kept here between calls, as what the pool does and counts each time takes a sixth of a send.
        self._idle = IdleConnectionsByProcess(limit)

    def ask(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """Makes calls in one round trip. Result: their replies. Loads scripts that the server does not have."""
        if self._suspect:
            self._probe()
        return self._complete(calls, self._attempt(partial(self._exchange, calls)))

    def send(self, calls: Sequence[Call[Any]]) -> Any:
        """The first half of `ask`. Result: the connection over which the replies come; it must be received from."""
        if self._suspect:
            self._probe()
        return self._attempt(lambda: self._send(calls))

    @property
    def sends_at_once(self) -> bool:
        """Whether `send` has a connection that is open, and need not wait for the server to make one."""
        idle = self._idle[os.getpid()].next
        return not self._suspect and idle is not None and idle._sock is not None  # noqa: SLF001 - the client does not tell

    def receive(self, connection: Any, calls: Sequence[Call[Any]]) -> list[Any]:
        """The second half of `ask`."""
        return self._complete(calls, self._attempt(lambda: self._receive(connection, len(calls))))

    def receive_first(self, connection: Any) -> Any:
        """The first reply alone; the others are still to be received."""
        return self._attempt(lambda: self._receive_first(connection))

    def give_up(self, connection: Any) -> None:
        """Takes a connection back that is not received from to the end, and breaks it: replies may be on their way."""
        try:
            connection.disconnect()
        finally:
            self._idle[os.getpid()].append(connection)

    def _probe(self) -> None:
        self._attempt(self._ping, unreachable_at=self._address)
        self._suspect = False

    def _exchange(self, calls: Sequence[Call[Any]]) -> list[Any]:
        return self._receive(self._send(calls), len(calls))

    def _ping(self) -> None:
        [reply] = self._exchange([_PING])
        if isinstance(reply, Exception):
            raise reply

    def _send(self, calls: Sequence[Call[Any]]) -> Any:
        connection = self._borrow()
        try:
            connection.send_packed_command(pack(calls))
        except BaseException:
            self.give_up(connection)
            raise
        return connection

    def _receive(self, connection: Any, count: int) -> list[Any]:
        try:
            replies = [_reply(connection) for _ in range(count)]
        except BaseException:
            self.give_up(connection)
            raise
        self._idle[os.getpid()].append(connection)
        return replies

    def _receive_first(self, connection: Any) -> Any:
        try:
            return _reply(connection)
        except BaseException:
            self.give_up(connection)
            raise

    def _complete(self, calls: Sequence[Call[Any]], replies: list[Any]) -> list[Any]:
        """Repeats what the server did not do for want of a script."""
        if not has_errors(replies):
            return replies
        for _ in range(LOADS):
            again = forgotten(calls, replies)
            left = [calls[at] for at in again]
            if not left or not self._load(left):
                break
            for at, reply in zip(again, self._attempt(partial(self._exchange, left)), strict=True):
                replies[at] = reply
        if is_no_master(replies):
            self._leave()
        return replies

    def _load(self, calls: Sequence[Call[Any]]) -> bool:
        """Loads the scripts of these calls; says whether we may."""
        scripts = {call.script for call in calls if call.script}
        loads: list[Call[Any]] = [command("SCRIPT", "LOAD", script.text) for script in scripts]
        try:
            check_replies(self._attempt(partial(self._exchange, loads)))
        except AccessDenied:
            return False
        return True

    def _borrow(self) -> Any:
        connection = self._idle[os.getpid()].pop(self._timeout_s)
        try:
            if connection is None:
                return self._pool.get_connection()
            if _is_spoilt(connection):
                connection.disconnect()
        except BaseException:
            self._idle[os.getpid()].append(connection)
            raise
        return connection

    def _attempt(self, ask: Callable[[], T], unreachable_at: Address | None = None) -> T:
        try:
            return ask()
        except (redis.exceptions.RedisError, OSError) as error:
            found = unreachable(error, unreachable_at) if unreachable_at else lisa_error(error)
            if isinstance(found, OutcomeUnknown | Unreachable):
                self._leave()
            raise found from error

    def _leave(self) -> None:
        """Breaks all connections that are not in use: the next may lead elsewhere, after a fail-over."""
        self._suspect = True
        self._idle[os.getpid()].disconnect()

    def close(self) -> None:
        """Closes all connections."""
        self._pool.disconnect()


def _is_spoilt(connection: Any) -> bool:
    """Whether the server has closed it, or something came that nobody asked for."""
    try:
        return bool(connection.can_read())
    except (redis.exceptions.RedisError, OSError):
        return True


def _reply(connection: Any) -> Any:
    try:
        return connection.read_response()
    except redis.exceptions.ResponseError as error:
        return error
