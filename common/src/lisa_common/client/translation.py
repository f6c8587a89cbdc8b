"""Translates errors of the Redis client into Lisa's."""

import re
import ssl
from collections.abc import Mapping, Sequence
from typing import Any

import redis.exceptions as redis_errors

from lisa_common.client.address import Address
from lisa_common.errors import (
    AccessDenied,
    InvalidInput,
    LisaError,
    NoGroup,
    OutcomeUnknown,
    QueueFull,
    Refused,
    Resharded,
    ServerError,
    TooManyGroups,
    Unreachable,
    Untrusted,
)
from lisa_common.tls import Tls

__all__ = [
    "first_line",
    "is_command_refused",
    "is_reply",
    "lisa_error",
    "must_reconnect",
    "no_answer",
    "unreachable",
]

_UNSERVED = (redis_errors.BusyLoadingError, redis_errors.AuthenticationError)
"""Replies to one call that the Redis client raises as errors of the connection."""

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
_TOPIC_ERRORS: dict[str, type[ServerError]] = {
    "NOGROUP": NoGroup,
    "UNBLOCKED": NoGroup,
    "RESHARDED": Resharded,
    "TOOMANYGROUPS": TooManyGroups,
    "QUEUEFULL": QueueFull,
}
# The client reconnects by itself before a command; when that fails the command was not sent.
_CONNECTING = re.compile(r"(Error|Timeout)\b.* connecting to ")
_BROKEN = "the connection to Redis broke before the reply"
_NO_SCRIPT = (
    "Redis refuses for now: it lacks a script, and does not accept or keep it; the URL must lead to one server; "
    "if the user may not load scripts, run `lisa-manager load-scripts`"
)
_NO_DATABASE = "DB index is out of range"
_OLD_TLS = ("TLSV1_ALERT_PROTOCOL_VERSION", "UNSUPPORTED_PROTOCOL")
_DENIED = (
    redis_errors.AuthenticationError,
    redis_errors.AuthenticationWrongNumberOfArgsError,
    redis_errors.NoPermissionError,
)
# The last two concern a command in a script; Redis 7.0 has a text of its own.
_DENIALS = ("NOPERM", "WRONGPASS", "NOAUTH", "ACL failure in script", "The user executing the script can't")
_UNNAMED = _DENIALS[-1]
_REFUSED_COMMAND = re.compile(
    r"no permissions to run|unsupported (sub)?command|unknown (redis |sub)?command|"
    r"command\b.*\b(not|n't) (be )?(supported?|allowed|available|permitted|implemented|enabled)|command\b.*\bdisabled",
    re.IGNORECASE,
)
"""How servers and proxies refuse a command: by their ACL, because it was renamed, or by themselves."""


def unreachable(error: Exception, address: Address) -> LisaError:
    """The error of a failed connection attempt: nothing was requested yet, so nothing was done."""
    cause = lisa_error(error)
    if str(cause).startswith(_NO_DATABASE):
        return InvalidInput("redis_url", address.shown, "a URL with a database that the server has, by default 0 to 15")
    if isinstance(cause, OutcomeUnknown | Unreachable):
        return Unreachable(f"cannot reach Redis at {address.shown}: {first_line(error)}{_hint(error, address)}")
    return Untrusted(f"{cause}, at {address.shown}") if isinstance(cause, Untrusted) else cause


def _hint(error: Exception, address: Address) -> str:
    tls: Tls | None = address.options.get("tls")
    is_late = isinstance(error, redis_errors.TimeoutError)
    hung_up = isinstance(lisa_error(error), OutcomeUnknown) and not is_late
    if tls is None:
        over_tcp = "path" not in address.options
        return " (does this port speak TLS? then the URL begins with rediss)" if hung_up and over_tcp else ""
    if is_late or "WRONG_VERSION_NUMBER" in str(error):
        return " (does it speak TLS on this port? if not, the URL begins with redis)"
    return " (does it request a client certificate, tls_cert?)" if hung_up and not tls.cert else ""


def lisa_error(error: Exception) -> LisaError:
    """Lisa's error for one of the Redis client's."""
    if isinstance(error, LisaError):
        return error
    inner = _unwrapped(error)
    if isinstance(inner, ServerError):
        return type(inner)(str(inner))
    return _tls_error(inner) or _redis_error(inner)


def _unwrapped(error: Exception) -> Exception:
    """The error behind a failed connection: the asyncio client wraps its own, and both clients wrap ours."""
    cause = error.__cause__
    if isinstance(error, redis_errors.ConnectionError) and isinstance(cause, ServerError | redis_errors.RedisError):
        return _unwrapped(cause)
    return error


def _redis_error(error: Exception) -> LisaError:
    text = first_line(error)
    refusals = (
        redis_errors.BusyLoadingError,
        redis_errors.ClusterDownError,
        redis_errors.OutOfMemoryError,
        redis_errors.ReadOnlyError,
        redis_errors.TryAgainError,
    )
    refuses = isinstance(error, refusals) or text.startswith(_REFUSALS)
    if isinstance(error, _DENIED) or text.startswith(_DENIALS) or (_REFUSED_COMMAND.search(text) and not refuses):
        hint = "; `lisa-manager doctor` names the command" if text.startswith(_UNNAMED) else ""
        return AccessDenied(f"Redis denies access: {text}{hint}")
    if refuses:
        return Refused(f"Redis refuses for now: {text}")
    if isinstance(error, redis_errors.NoScriptError):
        return Refused(_NO_SCRIPT)
    # After a reply of another protocol the connection is of no use either.
    broken = (redis_errors.ConnectionError, redis_errors.TimeoutError, redis_errors.InvalidResponse, OSError)
    if isinstance(error, broken):
        never = _CONNECTING.match(text)
        return Unreachable(f"cannot reach Redis: {text}") if never else OutcomeUnknown(f"{_BROKEN}: {text}")
    if isinstance(error, redis_errors.AskError):
        return ServerError(
            f"this is one node of a Cluster: its URL begins with redis+cluster:// (redirected to {text})"
        )
    kind = next((kind for word, kind in _TOPIC_ERRORS.items() if text.startswith(word)), ServerError)
    return kind(text)


def _tls_error(error: Exception) -> LisaError | None:
    """The error of a TLS handshake, which the Redis client wraps in its own."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    if isinstance(cause, ssl.SSLCertVerificationError):
        return Untrusted(f"Redis is not trusted: {cause.verify_message}")
    if cause is not None and cause.reason in _OLD_TLS:
        return Untrusted(f"Redis is not trusted: it must speak TLS 1.2 or newer: {first_line(error)}")
    if cause is not None and "ALERT" in (cause.reason or ""):
        return AccessDenied(f"Redis denies access: it does not trust the client's certificate: {first_line(error)}")
    return None


def is_reply(error: Exception) -> bool:
    """Whether an error that the Redis client raises as one of the connection is the server's reply to one call."""
    return isinstance(error, _UNSERVED) or str(error).startswith("max number of clients")


def is_command_refused(reply: Any) -> bool:
    """True if a reply refuses its own command, not one that its script calls."""
    if not isinstance(reply, redis_errors.ResponseError) or isinstance(reply, redis_errors.OutOfMemoryError):
        return False
    text = first_line(reply)
    return bool(_REFUSED_COMMAND.search(text)) and not re.search(r"(from|in|executing the) script|@user_script", text)


def must_reconnect(replies: Sequence[Any]) -> bool:
    """Whether a reply says that new connections may do better: they may lead to the master, and log in."""
    return any(isinstance(reply, (redis_errors.ReadOnlyError, *_UNSERVED)) for reply in replies)


def no_answer(text: str, failures: Mapping[str, Exception]) -> ServerError:
    """The error for several servers, by name, that all failed."""
    reasons = "; ".join(f"{name}: {first_line(error)}" for name, error in failures.items())
    # If the reasons differ, a server that is away now may accept the request.
    kinds = {type(lisa_error(error)) for error in failures.values()}
    kind = kinds.pop() if len(kinds) == 1 else Unreachable
    return (kind if kind in {AccessDenied, Untrusted} else Unreachable)(f"{text} ({reasons})")


def first_line(error: Exception) -> str:
    """The first line of an error's text."""
    return (str(error) or type(error).__name__).splitlines()[0]
