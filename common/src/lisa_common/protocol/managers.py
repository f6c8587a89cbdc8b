"""Signs of life: each manager renews its own in one sorted set, which the server deletes when none has for a while."""

from lisa_common.errors import AccessDenied
from lisa_common.model.keys import managers_key
from lisa_common.protocol.call import Flow, command

__all__ = ["RENEW_S", "find_absence", "renew", "withdraw"]

RENEW_S = 5.0
"""How often a manager renews its sign."""

_LIFE_MS = 15_000
"""A manager that has not renewed its sign for this long counts as ended."""


def renew(prefix: str, name: str, now_ms: int) -> Flow[None]:
    """Says that a manager lives at this moment of the server's clock. A full server keeps what it has."""
    return _write(prefix, name, now_ms, now_ms)


def withdraw(prefix: str, name: str, now_ms: int) -> Flow[None]:
    """Says that a manager has ended."""
    # A sign of 1970 is removed with those that are too old; ZREM would need another right.
    return _write(prefix, name, 0, now_ms)


def _write(prefix: str, name: str, seen_ms: int, now_ms: int) -> Flow[None]:
    key = managers_key(prefix)
    yield [command("ZADD", key, seen_ms, name), command("PEXPIRE", key, _LIFE_MS)]
    yield command("ZREMRANGEBYSCORE", key, "-inf", now_ms - _LIFE_MS)


def find_absence(prefix: str) -> Flow[str]:
    """Returns one line with the command to run if no manager runs; "" if one does, or if the user may not know."""
    try:
        # The set has no member for longer than a sign lives, so no clock is read.
        managers: int = yield command("ZCARD", managers_key(prefix))
    except AccessDenied:
        return ""
    if managers:
        return ""
    start = "lisa-manager run" if prefix == "lisa" else f"lisa-manager run --prefix {prefix}"
    return f"no manager runs, so messages that fall due wait; start one: {start}"
