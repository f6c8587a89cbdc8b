"""The Redis client's errors as ours."""

import re
import ssl
from collections.abc import Mapping, Sequence
from typing import Any

import redis.exceptions as redis_errors

from lisa_common.client.address import Address
from lisa_common.errors import (
    AccessDenied,
    LisaError,
    NoGroup,
    OutcomeUnknown,
    Refused,
    Resharded,
    ServerError,
    TooManyGroups,
    Unreachable,
    Untrusted,
)
from lisa_common.tls import Tls

__all__ = ["first_line", "is_no_master", "lisa_error", "nobody", "unreachable"]

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


def is_no_master(replies: Sequence[Any]) -> bool:
    """Whether a reply says that the server was demoted, so that other connections may lead to the master."""
    return any(isinstance(reply, redis_errors.ReadOnlyError) for reply in replies)


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
