"""The blocking shell: drives flows over `redis.Redis`. `lisa_common.aio` is its asyncio twin."""

import os
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar

import redis
import redis.exceptions
from redis.retry import Retry

from lisa_common.address import Address, read_url
from lisa_common.call import Call, Flow
from lisa_common.development import EmbeddedConnection
from lisa_common.errors import LisaError, OutcomeUnknown, Refused, Unreachable
from lisa_common.sentinel import SentinelConnection, TlsSentinelConnection
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
from lisa_common.tls import NO_TLS, Tls, TlsConnection

__all__ = ["Connection"]

T = TypeVar("T")

_CLASSES = {
    "redis": redis.Connection,
    "rediss": TlsConnection,
    "unix": redis.UnixDomainSocketConnection,
    "embedded": EmbeddedConnection,
    "redis+sentinel": SentinelConnection,
    "rediss+sentinel": TlsSentinelConnection,
}


class Connection:
    """A pool of connections to one server, safe to share among threads.

    Errors are those of `lisa_common.errors`. With patience, what the server has certainly not done, or what is as good
    done twice, is tried again for so many seconds, with growing delays; then the last error is raised.
    """

    def __init__(self, url: str, *, name: str = "lisa", timeout_s: float = 10.0, tls: Tls = NO_TLS) -> None:
        self._address = read_url(url, tls)
        pool = redis.ConnectionPool(
            connection_class=_CLASSES[self._address.scheme],
            retry=Retry(NO_RETRY, 0),
            **connection_options(self._address, name=name, timeout_s=timeout_s),
        )
        check_options(pool, self._address)
        self.client = redis.Redis.from_pool(pool)
        self.client.response_callbacks.clear()
        # A connection that may be broken is tried with a PING first, so that a request which finds no server is known
        # not to have been carried out.
        self._suspect = True
        # Connections are kept here between calls, as what the pool does and counts each time takes a sixth of a send;
        # by process, as a forked child must not speak on its parent's.
        self._idle: dict[int, list[Any]] = defaultdict(list)

    @classmethod
    def of(cls, settings: Settings, *, name: str, url: str | None = None, blocking_s: float = 0.0) -> Self:
        """A connection as the settings have it, or to `url`; calls may wait at the server for `blocking_s` seconds."""
        return cls(
            url or settings.redis_url.get_secret_value(),
            name=name,
            timeout_s=settings.timeout_s + blocking_s,
            tls=settings.tls,
        )

    def run(self, flow: Flow[T], *, patience_s: float = 0.0) -> T:
        """Drives a flow to its result."""
        deadline = time.monotonic() + patience_s
        try:
            step = next(flow)
            while True:
                calls = (step,) if isinstance(step, Call) else step
                try:
                    results = self._patiently(calls, deadline)
                except LisaError as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(results[0] if isinstance(step, Call) else results)
        except StopIteration as stop:
            result: T = stop.value
            return result

    def call(self, call: Call[T], *, patience_s: float = 0.0) -> T:
        """Makes one call."""
        result: T = self._patiently((call,), time.monotonic() + patience_s)[0]
        return result

    def _patiently(self, calls: Sequence[Call[Any]], deadline: float) -> list[Any]:
        failures, unknown = 0, None
        while True:
            try:
                return self.execute(calls)
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
                time.sleep(delay)

    def execute(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """Makes calls in one round trip; raises the first error among their replies."""
        results = self.execute_each(calls)
        for result in results:
            if isinstance(result, LisaError):
                raise result
        return results

    def execute_each(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """Makes calls in one round trip; a call that the server answers with an error has it as its result.

        Loads scripts that the server does not have. Raises what concerns the connection as a whole.
        """
        if self._suspect:
            self._attempt(self.client.ping, unreachable_at=self._address)
            self._suspect = False
        replies = self._attempt(lambda: self._send(calls))
        if again := forgotten(calls, replies):
            scripts = {call.script for call in calls if call.script}
            self._attempt(lambda: [self.client.script_load(s.text) for s in scripts])
            repeated = self._attempt(lambda: self._send([calls[at] for at in again]))
            for at, reply in zip(again, repeated, strict=True):
                replies[at] = reply
        if is_no_master(replies):
            self._leave()
        return [read_reply(call, reply) for call, reply in zip(calls, replies, strict=True)]

    def _send(self, calls: Sequence[Call[Any]]) -> list[Any]:
        idle = self._idle[os.getpid()]
        connection = self._borrow(idle)
        try:
            connection.send_packed_command(pack(calls))
            return [_reply(connection) for _ in calls]
        except BaseException:
            # There may be replies on their way that nobody waits for.
            connection.disconnect()
            raise
        finally:
            idle.append(connection)

    def _borrow(self, idle: list[Any]) -> Any:
        try:
            connection = idle.pop()
        except IndexError:
            return self.client.connection_pool.get_connection()
        if _is_spoilt(connection):
            connection.disconnect()
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
        self.client.connection_pool.disconnect(inuse_connections=False)
        idle, taken = self._idle[os.getpid()], []
        with suppress(IndexError):
            # One by one, as other threads borrow meanwhile.
            while True:
                taken.append(idle.pop())
        for connection in taken:
            connection.disconnect()
        idle.extend(taken)

    def close(self) -> None:
        """Closes all connections of the pool."""
        self.client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


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
