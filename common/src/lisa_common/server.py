"""What the blocking and the asyncio connection share: client options, and Redis' errors as ours."""

import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import redis.exceptions as redis_errors
from redis.backoff import ExponentialWithJitterBackoff, NoBackoff
from redis.connection import parse_url

from lisa_common.call import Call
from lisa_common.errors import (
    AccessDenied,
    InvalidInput,
    LisaError,
    NoGroup,
    OutcomeUnknown,
    Refused,
    ServerError,
    Unreachable,
)

__all__ = [
    "NO_RETRY",
    "RECONNECT",
    "check_options",
    "client_options",
    "forgotten",
    "lisa_error",
    "masked",
    "read_reply",
    "unreachable",
]

RECONNECT = ExponentialWithJitterBackoff(base=0.02, cap=1.0)
"""Delays between tries to reach a server: `compute(failures)` in seconds."""

NO_RETRY = NoBackoff()
"""The client itself must not repeat a command: it cannot know which are safe to repeat."""

_QUERY_PASSWORD = re.compile(r"(\bpassword=)[^&]*")
_REFUSALS = (
    "OOM",
    "MISCONF",
    "READONLY",
    "LOADING",
    "BUSY",
    "NOREPLICAS",
    "MASTERDOWN",
    "max number of clients",
    "CLUSTERDOWN",
    "TRYAGAIN",
)
# The client reconnects by itself before a command; when that fails the command was not sent.
_CONNECTING = re.compile(r"(Error|Timeout)\b.* connecting to ")
_BROKEN = "the connection to Redis broke before the reply"
_DENIED = (
    redis_errors.AuthenticationError,
    redis_errors.AuthenticationWrongNumberOfArgsError,
    redis_errors.NoPermissionError,
)


def client_options(url: str, *, name: str, timeout_s: float) -> dict[str, Any]:
    """Options for `redis.Redis.from_url` of either client; raises InvalidInput for a URL that is none of ours."""
    try:
        parts = urlsplit(url)
        parse_url(url)  # type: ignore[no-untyped-call]
    except ValueError as error:
        limit = f"a redis://, rediss:// or unix:// URL is ({_first_line(error)})"
        raise InvalidInput("redis_url", masked(url), limit) from None
    database = parts.path.strip("/")
    if parts.scheme != "unix" and database and not database.isdecimal():
        raise InvalidInput("redis_url", masked(url), f"with a path, the number of a database is, not {database!r}")
    return {
        "url": url,
        "client_name": name,
        "protocol": 2,
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "socket_keepalive": True,
        "health_check_interval": 30,
    }


def check_options(pool: Any, url: str) -> None:
    """Raises InvalidInput when the URL carries options that a connection does not take."""
    try:
        # It does not connect yet.
        pool.connection_class(**pool.connection_kwargs)
    except (TypeError, ValueError) as error:
        raise InvalidInput("redis_url", masked(url), f"with options, those of the client are ({error})") from None


def masked(url: str) -> str:
    """The URL, or what was meant to be one, without its password."""
    login, at, rest = _QUERY_PASSWORD.sub(r"\1***", url).rpartition("@")
    scheme, slashes, login = login.rpartition("://")
    user, colon, _ = login.partition(":")
    if not slashes and at:
        return f"***@{rest}"
    return f"{scheme}{slashes}{user}{colon and ':***'}{at}{rest}"


def unreachable(error: Exception, url: str) -> LisaError:
    """The error of a connection that could not be made: nothing was asked yet, so nothing was done."""
    found = lisa_error(error)
    if isinstance(found, OutcomeUnknown | Unreachable):
        return Unreachable(f"cannot reach Redis at {masked(url)}: {_first_line(error)}")
    return found


def lisa_error(error: Exception) -> LisaError:
    """Our error for one of the Redis client's."""
    text = _first_line(error)
    if isinstance(error, LisaError):
        return error
    if isinstance(error, _DENIED) or text.startswith(("NOPERM", "WRONGPASS", "NOAUTH")):
        return AccessDenied(f"Redis denies access: {text}")
    refusals = (
        redis_errors.BusyLoadingError,
        redis_errors.OutOfMemoryError,
        redis_errors.ReadOnlyError,
    )
    if isinstance(error, refusals) or text.startswith(_REFUSALS):
        return Refused(f"Redis refuses for now: {text}")
    if isinstance(error, redis_errors.ConnectionError | redis_errors.TimeoutError | OSError):
        never = _CONNECTING.match(text)
        return Unreachable(f"cannot reach Redis: {text}") if never else OutcomeUnknown(f"{_BROKEN}: {text}")
    if text.startswith(("NOGROUP", "UNBLOCKED")):
        return NoGroup(text)
    return ServerError(text)


def forgotten(calls: Sequence[Call[Any]], replies: Sequence[Any]) -> list[int]:
    """Positions of the calls to make again because the server forgot their scripts.

    What follows a script may be about its effect, as WAIT is: commands that are not scripts are made again with it.
    """
    lost = {at for at, reply in enumerate(replies) if isinstance(reply, redis_errors.NoScriptError)}
    return [at for at, call in enumerate(calls) if at in lost or call.script is None] if lost else []


def read_reply(call: Call[Any], reply: Any) -> Any:
    """The result of a call, or the LisaError that it met."""
    if isinstance(reply, Exception) and not call.takes_errors:
        return lisa_error(reply)
    return call.decode(reply)


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
