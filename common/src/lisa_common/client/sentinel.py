"""Sentinel: each new connection asks the sentinels for the master."""

import socket
from collections.abc import Mapping
from typing import Any

import redis
import redis.asyncio
import redis.exceptions
from redis.asyncio.retry import Retry as AsyncRetry
from redis.retry import Retry

from lisa_common.client.address import Sentinels, reach
from lisa_common.client.async_progress import hardened
from lisa_common.client.options import NO_RETRY
from lisa_common.client.tls import AsyncTlsConnection, TlsConnection
from lisa_common.client.translation import no_answer

__all__ = [
    "AsyncSentinelConnection",
    "AsyncTlsSentinelConnection",
    "SentinelConnection",
    "TlsSentinelConnection",
]

_PATIENCE_S = 1.0
"""Longest wait for one sentinel, as others may answer."""

_Failures = dict[str, Exception]


class SentinelConnection(redis.Connection):
    """A blocking connection to the current master of a service."""

    _kind: type[redis.Connection] = redis.Connection

    def __init__(self, *, sentinels: Sentinels, **options: Any) -> None:
        self._sentinels = sentinels
        self._sentinel_options = _sentinel_arguments(sentinels, options)
        super().__init__(**options)  # type: ignore[no-untyped-call]

    def _connect(self) -> socket.socket:
        self.host, self.port = self._find_master()
        connected: socket.socket = super()._connect()  # type: ignore[no-untyped-call]
        return connected

    def _find_master(self) -> tuple[str, int]:
        failures: _Failures = {}
        for node in self._sentinels.nodes:
            try:
                return reach(_master(self._ask(*node)), self._sentinels.reached)
            except (redis.exceptions.RedisError, OSError) as error:
                failures["{}:{}".format(*node)] = error
        raise _no_master(self._sentinels, failures)

    def _ask(self, host: str, port: int) -> Any:
        sentinel: Any = self._kind(host=host, port=port, retry=Retry(NO_RETRY, 0), **self._sentinel_options)
        try:
            sentinel.connect()
            sentinel.send_command("SENTINEL", "MASTER", self._sentinels.service)
            return sentinel.read_response()
        finally:
            sentinel.disconnect()


class TlsSentinelConnection(SentinelConnection, TlsConnection):
    """The same over TLS, also to the sentinels."""

    _kind = TlsConnection


class AsyncSentinelConnection(redis.asyncio.Connection):
    """The asyncio twin of `SentinelConnection`."""

    # It keeps a cancellation during a write: a worker may be stopped while it asks a sentinel.
    _kind: type[redis.asyncio.Connection] = hardened(redis.asyncio.Connection)

    def __init__(self, *, sentinels: Sentinels, **options: Any) -> None:
        self._sentinels = sentinels
        self._sentinel_options = _sentinel_arguments(sentinels, options)
        super().__init__(**options)

    async def _connect(self) -> None:
        self.host, self.port = await self._find_master()
        await super()._connect()  # type: ignore[no-untyped-call]

    async def _find_master(self) -> tuple[str, int]:
        failures: _Failures = {}
        for node in self._sentinels.nodes:
            try:
                return reach(_master(await self._ask(*node)), self._sentinels.reached)
            except (redis.exceptions.RedisError, OSError) as error:
                failures["{}:{}".format(*node)] = error
        raise _no_master(self._sentinels, failures)

    async def _ask(self, host: str, port: int) -> Any:
        sentinel: Any = self._kind(host=host, port=port, retry=AsyncRetry(NO_RETRY, 0), **self._sentinel_options)
        try:
            await sentinel.connect()
            await sentinel.send_command("SENTINEL", "MASTER", self._sentinels.service)
            return await sentinel.read_response()
        finally:
            await sentinel.disconnect(nowait=True)


class AsyncTlsSentinelConnection(AsyncSentinelConnection, AsyncTlsConnection):
    """The asyncio twin of `TlsSentinelConnection`."""

    _kind = hardened(AsyncTlsConnection)


def _sentinel_arguments(sentinels: Sentinels, options: Mapping[str, Any]) -> dict[str, Any]:
    patience_s = min(options["socket_connect_timeout"], _PATIENCE_S)
    tls = {"tls": options["tls"]} if "tls" in options else {}
    return {
        "protocol": 2,
        "socket_timeout": patience_s,
        "socket_connect_timeout": patience_s,
        **sentinels.login,
        **tls,
    }


def _master(reply: list[bytes]) -> tuple[str, int]:
    """Host and port of the master from the reply to SENTINEL MASTER. Raises if the master is down."""
    state = dict(zip(reply[::2], reply[1::2], strict=True))
    if {b"s_down", b"o_down"} & set(state[b"flags"].split(b",")):
        raise redis.exceptions.ConnectionError("the master is down, and no replica is promoted yet")
    return state[b"ip"].decode(), int(state[b"port"])


def _no_master(sentinels: Sentinels, failures: _Failures) -> redis.exceptions.ConnectionError:
    """The Redis client expects one of its own errors; its cause is ours, which `lisa_error` unwraps."""
    cause = no_answer(f"no sentinel leads to the master of {sentinels.service!r}", failures)
    error = redis.exceptions.ConnectionError(str(cause))
    error.__cause__ = cause
    return error
