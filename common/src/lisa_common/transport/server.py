"""What the blocking and the asyncio connection share: client options, and Redis' errors as ours."""

import re
import ssl
from collections.abc import Mapping, Sequence
from typing import Any

import hiredis
import redis.exceptions as redis_errors
from redis.backoff import ExponentialWithJitterBackoff, NoBackoff

from lisa_common.call import Call, units
from lisa_common.errors import (
    AccessDenied,
    InvalidInput,
    LisaError,
    NoGroup,
    OutcomeUnknown,
    Refused,
    Resharded,
    ServerError,
    TooManyGroups,
    Unreachable,
    UnreadableReply,
    Untrusted,
)
from lisa_common.transport.address import Address
from lisa_common.transport.tls import Tls

__all__ = [
    "LOADS",
    "NO_RETRY",
    "RECONNECT",
    "UNBOUNDED",
    "check_options",
    "check_replies",
    "connection_options",
    "first_line",
    "forgotten",
    "has_errors",
    "is_no_master",
    "lisa_error",
    "nobody",
    "pack",
    "read_reply",
    "unreachable",
]


class _Reconnect(ExponentialWithJitterBackoff):
    """The client's overflows at the 1,024th failure, which comes after a quarter of an hour."""

    def compute(self, failures: int) -> float:
        # By then the delay has come to its cap.
        return super().compute(min(failures, 32))


RECONNECT = _Reconnect(base=0.02, cap=1.0)
"""Delays between tries to reach a server: `compute(failures)` in seconds."""

NO_RETRY = NoBackoff()
"""The client itself must not repeat a command: it cannot know which are safe to repeat."""

UNBOUNDED = 2**31
"""The client's own limit of connections: it would raise where we wait."""

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
_OF_TOPICS = {"NOGROUP": NoGroup, "UNBLOCKED": NoGroup, "RESHARDED": Resharded, "TOOMANYGROUPS": TooManyGroups}
# The client reconnects by itself before a command; when that fails the command was not sent.
_CONNECTING = re.compile(r"(Error|Timeout)\b.* connecting to ")
_BROKEN = "the connection to Redis broke before the reply"
_NO_SCRIPT = (
    "Redis refuses for now: it has not got a script, and does not take or keep it; the URL must lead to one server, "
    "and where users may not load scripts, `lisa-manager load-scripts` must"
)
_OLD_TLS = ("TLSV1_ALERT_PROTOCOL_VERSION", "UNSUPPORTED_PROTOCOL")
_DENIED = (
    redis_errors.AuthenticationError,
    redis_errors.AuthenticationWrongNumberOfArgsError,
    redis_errors.NoPermissionError,
)
# The last two are about a command in a script; Redis 7.0 says it in its own words.
_DENIALS = ("NOPERM", "WRONGPASS", "NOAUTH", "ACL failure in script", "The user executing the script can't")


def connection_options(address: Address, *, name: str, timeout_s: float) -> dict[str, Any]:
    """Options of a connection of either client. What the URL says goes first."""
    over_tcp = {} if "path" in address.options else {"socket_keepalive": True}
    return {
        "client_name": name,
        "protocol": 2,
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "health_check_interval": 30,
        **over_tcp,
        **address.options,
    }


def check_options(pool: Any, address: Address) -> None:
    """Raises InvalidInput when the URL carries options that a connection does not take."""
    try:
        # It does not connect yet.
        pool.connection_class(**pool.connection_kwargs)
    except (TypeError, ValueError) as error:
        limit = f"with options, those of the client are ({error})"
        raise InvalidInput("redis_url", address.shown, limit) from None


def unreachable(error: Exception, address: Address) -> LisaError:
    """The error of a connection that could not be made: nothing was asked yet, so nothing was done."""
    found = lisa_error(error)
    if isinstance(found, OutcomeUnknown | Unreachable):
        return Unreachable(f"cannot reach Redis at {address.shown}: {first_line(error)}{_hint(error, address)}")
    return Untrusted(f"{found}, at {address.shown}") if isinstance(found, Untrusted) else found


def _hint(error: Exception, address: Address) -> str:
    tls: Tls | None = address.options.get("tls")
    if tls is None:
        return ""
    if isinstance(error, redis_errors.TimeoutError):
        return " (does it speak TLS on this port?)"
    hung_up = isinstance(lisa_error(error), OutcomeUnknown)
    return " (does it want a certificate of ours, tls_cert?)" if hung_up and not tls.cert else ""


def lisa_error(error: Exception) -> LisaError:
    """Our error for one of the Redis client's."""
    if isinstance(error, LisaError):
        return error
    inner = _unwrapped(error)
    if isinstance(inner, ServerError):
        return type(inner)(str(inner))
    return _tls_error(inner) or _redis_error(inner)


def _unwrapped(error: Exception) -> Exception:
    """What was raised while connecting; the asyncio client wraps it, and our own come wrapped into either."""
    cause = error.__cause__
    if isinstance(error, redis_errors.ConnectionError) and isinstance(cause, ServerError | redis_errors.RedisError):
        return _unwrapped(cause)
    return error


def _redis_error(error: Exception) -> LisaError:
    text = first_line(error)
    if isinstance(error, _DENIED) or text.startswith(_DENIALS):
        return AccessDenied(f"Redis denies access: {text}")
    refusals = (
        redis_errors.BusyLoadingError,
        redis_errors.ClusterDownError,
        redis_errors.OutOfMemoryError,
        redis_errors.ReadOnlyError,
        redis_errors.TryAgainError,
    )
    if isinstance(error, refusals) or text.startswith(_REFUSALS):
        return Refused(f"Redis refuses for now: {text}")
    if isinstance(error, redis_errors.NoScriptError):
        return Refused(_NO_SCRIPT)
    if isinstance(error, redis_errors.ConnectionError | redis_errors.TimeoutError | OSError):
        never = _CONNECTING.match(text)
        return Unreachable(f"cannot reach Redis: {text}") if never else OutcomeUnknown(f"{_BROKEN}: {text}")
    if isinstance(error, redis_errors.AskError):
        return ServerError(f"this is one node of a Cluster: its URL begins with redis+cluster:// (sent to {text})")
    kind = next((kind for word, kind in _OF_TOPICS.items() if text.startswith(word)), ServerError)
    return kind(text)


def _tls_error(error: Exception) -> LisaError | None:
    """What went wrong between the two sides of TLS; the client wraps it in an error of its own."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    if isinstance(cause, ssl.SSLCertVerificationError):
        return Untrusted(f"Redis is not trusted: {cause.verify_message}")
    if cause is not None and cause.reason in _OLD_TLS:
        return Untrusted(f"Redis speaks no TLS that is safe; from 1.2 on it is: {first_line(error)}")
    if cause is not None and "ALERT" in (cause.reason or ""):
        return AccessDenied(f"Redis does not trust us: {first_line(error)}")
    return None


def has_errors(found: Sequence[Any]) -> bool:
    """Whether there are errors among replies, or results."""
    for one in found:  # noqa: SIM110 - every call comes by here, and `any` takes three times as long
        if isinstance(one, Exception):
            return True
    return False


def check_replies(replies: Sequence[Any]) -> None:
    """Raises the first error among replies, as a LisaError."""
    for reply in replies:
        if isinstance(reply, Exception):
            raise lisa_error(reply) from reply


def is_no_master(replies: Sequence[Any]) -> bool:
    """Whether a reply says that the server was demoted, so that other connections may lead to the master."""
    return any(isinstance(reply, redis_errors.ReadOnlyError) for reply in replies)


def pack(calls: Sequence[Call[Any]]) -> list[bytes]:
    """Calls as they go over the wire.

    Shells send them on a connection of the pool themselves: the client's own commands, with their retries, metrics and
    callbacks, and its way of packing, would take a third of the time of a send.
    """
    return [b"".join([hiredis.pack_command(call.args) for call in calls])]  # type: ignore[arg-type] # declared for one item


LOADS = 3
"""How often scripts are loaded for one request: what stands before several servers may never keep them."""


def forgotten(calls: Sequence[Call[Any]], replies: Sequence[Any]) -> list[int]:
    """Positions of the calls to make again because the server forgot their scripts, with what follows each of them."""
    lost = {at for at, reply in enumerate(replies) if isinstance(reply, redis_errors.NoScriptError)}
    return [at for unit in units(calls) if lost.intersection(unit) for at in unit] if lost else []


def read_reply(call: Call[Any], reply: Any) -> Any:
    """The result of a call, or the LisaError that it met.

    Whatever `decode` raises is an error of this call alone: what it was told of may be damaged.
    """
    if isinstance(reply, LisaError):
        return reply
    if isinstance(reply, Exception) and not call.takes_errors:
        return lisa_error(reply)
    try:
        return call.decode(reply)
    except LisaError as error:
        return error
    except Exception as error:  # noqa: BLE001 - what a decode raises depends on what others wrote
        name = call.script.name if call.script else str(call.args[0])
        return UnreadableReply(f"the reply to {name} cannot be read: {first_line(error)}; got {_excerpt(reply)}")


_MOST_ITEMS, _MOST_TEXT = 6, 60


def _excerpt(reply: Any, depth: int = 2) -> str:
    """The beginning of a reply in printable characters; replies may be large."""
    if isinstance(reply, list):
        if not depth:
            return "[…]"
        items = [_excerpt(item, depth - 1) for item in reply[:_MOST_ITEMS]]
        return f"[{', '.join(items)}{', …' if len(reply) > _MOST_ITEMS else ''}]"
    if isinstance(reply, bytes | str):
        return repr(reply[:_MOST_TEXT]) + ("…" if len(reply) > _MOST_TEXT else "")
    return ascii(reply)[:_MOST_TEXT]


def nobody(text: str, failures: Mapping[str, Exception]) -> ServerError:
    """The error of those who asked several servers, by name, and met nothing but failures."""
    told = "; ".join(f"{name}: {first_line(error)}" for name, error in failures.items())
    # What all say is so; where they say different things, one that is away now may know better.
    kinds = {type(found) for found in map(lisa_error, failures.values())}
    kind = kinds.pop() if len(kinds) == 1 else Unreachable
    return (kind if kind in {AccessDenied, Untrusted} else Unreachable)(f"{text} ({told})")


def first_line(error: Exception) -> str:
    """What an error says, in one line."""
    return (str(error) or type(error).__name__).splitlines()[0]
