"""Options of a connection to a server, for both clients."""

import re
import socket
from typing import Any, NamedTuple

from redis.backoff import NoBackoff

from lisa_common.client.address import Address
from lisa_common.errors import InvalidInput

__all__ = [
    "CALL",
    "CHECK_S",
    "IDLE_S",
    "NO_RETRY",
    "PING",
    "UNBOUNDED",
    "Connecting",
    "check_options",
    "connection_options",
]

NO_RETRY = NoBackoff()
"""The Redis client must not repeat commands: it cannot know which are safe to repeat."""

_UNKNOWN_OPTION = re.compile(r"unexpected keyword argument '(\w+)'")

CALL = b"here:"
"""How messages begin that listeners do not get."""

PING = b"*1\r\n$4\r\nPING\r\n"

UNBOUNDED = 2**31
"""The Redis client's own limit of connections: it would raise where Lisa waits."""


IDLE_S, CHECK_S = 2.0, 0.5
"""After so long without a reply a connection is tested by a PING before its next request, and how long that may take.

Proxies and NAT drop idle connections, often without a word; a request would wait for its whole timeout.
"""

_KEEPALIVE = {"TCP_KEEPIDLE": 20, "TCP_KEEPALIVE": 20, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""Probes of the kernel, in seconds: proxies that drop idle connections see traffic, and dead ones end in 35 s."""


class Connecting(NamedTuple):
    """How a program connects to its servers."""

    name: str
    timeout_s: float
    max_connections: int


def connection_options(address: Address, connecting: Connecting) -> dict[str, Any]:
    """Options of a connection. Those in the URL win."""
    over_tcp = {} if "path" in address.options else {"socket_keepalive": True, "socket_keepalive_options": _keepalive()}
    return {
        "client_name": connecting.name,
        "protocol": 2,
        "socket_timeout": connecting.timeout_s,
        "socket_connect_timeout": connecting.timeout_s,
        "health_check_interval": 30,
        "refusals": address.refusals,
        **over_tcp,
        **address.options,
    }


def _keepalive() -> dict[int, int]:
    """The options of this system: not all have each, and some have it by another name."""
    return {getattr(socket, name): value for name, value in _KEEPALIVE.items() if hasattr(socket, name)}


def check_options(pool: Any, address: Address) -> None:
    """Raises InvalidInput when the URL has options that a connection does not take."""
    try:
        # This does not connect yet.
        pool.connection_class(**pool.connection_kwargs)
    except (TypeError, ValueError) as error:
        unknown = _UNKNOWN_OPTION.search(str(error))
        # The client names its own classes and functions.
        reason = f"it does not know {unknown[1]}" if unknown else str(error)
        expected = f"a URL with only options that the Redis client knows ({reason})"
        raise InvalidInput("redis_url", address.shown, expected) from None
