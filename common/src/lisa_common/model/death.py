"""The history of a dead letter: how often, where and why a message has died, in headers of RabbitMQ's names.

`x-death` is a JSON array, newest first, with one object for each pair of queue and reason. Its fields are RabbitMQ's
(`queue`, `reason`, `count`, `first-time` and `last-time` in ms of the server's clock, `exchange`, `routing-keys`,
`original-expiration`), and Lisa's own: `group`, `message-id`, `attempts` and `error` of the last death.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from lisa_common.validation import is_id

__all__ = ["DEATHS", "FIRST_ID", "Death", "add_death", "dead_letter_id", "is_cycle", "read_deaths", "stems_from"]

DEATHS: Final = "x-death"
FIRST_ID: Final = "x-first-death-id"
"""The id that the message had where it died first."""

_REJECTED: Final = "rejected"
_WORDS: Final = dict.fromkeys(("nack", "abandoned", "isolated"), "delivery_limit") | {"aborted": _REJECTED}
"""RabbitMQ's words for reasons of failures; others are the same."""

_ERROR_LENGTH: Final = 1_000
"""Characters of an error that a history keeps."""

_DEAD_ID = re.compile(r"[^/]*/[^/]*/(.+)@[0-9]{1,16}", re.DOTALL)
_DIGITS: Final = 24


@dataclass(frozen=True, slots=True)
class Death:
    """The deaths of a message in one topic for one reason. Times are ms of the server's clock."""

    queue: str
    """The topic."""
    reason: str
    """RabbitMQ's word: rejected, expired or delivery_limit; unknown where the failure was lost."""
    count: int
    first_ms: int
    last_ms: int
    original_ttl_ms: int | None = None
    """The ttl that the message had; a dead letter has that of its new topic."""
    group: str = ""
    id: str = ""
    """The message's id in that topic."""
    attempts: int = 0
    error: str = ""
    """The text of the last failure, up to 1,000 characters."""

    @classmethod
    def of(cls, queue: str, failure_reason: str, died_ms: int, **details: Any) -> "Death":
        """A first death, for a reason of a failure: `nack`, `abandoned`, `rejected`, `aborted`, `expired`."""
        return cls(queue, _WORDS.get(failure_reason, failure_reason), 1, died_ms, died_ms, **details)


def read_deaths(headers: Mapping[str, str]) -> tuple[Death, ...]:
    """The history in a message's headers, newest first; none where there is no valid one."""
    text = headers.get(DEATHS)
    if text is None:
        return ()
    try:
        return tuple(map(_read, json.loads(text)))
    except (KeyError, RecursionError, TypeError, ValueError):
        # Senders may write any header.
        return ()


def _read(entry: Any) -> Death:
    expiration = entry.get("original-expiration") if isinstance(entry, dict) else None
    return Death(
        queue=_text(entry["queue"]),
        reason=_text(entry["reason"]),
        count=_number(entry["count"], 1),
        first_ms=_number(entry["first-time"]),
        last_ms=_number(entry["last-time"]),
        original_ttl_ms=None if expiration is None else _number(int(_text(expiration))),
        group=_text(entry.get("group", "")),
        id=_text(entry.get("message-id", "")),
        attempts=_number(entry.get("attempts", 0)),
        error=_text(entry.get("error", "")),
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _number(value: Any, low: int = 0) -> int:
    if type(value) is not int or not low <= value < 2**53:
        raise ValueError(value)
    return value


def _write(death: Death) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "queue": death.queue,
        "reason": death.reason,
        "count": death.count,
        "first-time": death.first_ms,
        "last-time": death.last_ms,
        "exchange": "",
        "routing-keys": [death.queue],
    }
    if death.original_ttl_ms is not None:
        entry["original-expiration"] = str(death.original_ttl_ms)
    own = {"group": death.group, "message-id": death.id, "attempts": death.attempts, "error": death.error}
    return entry | {name: value for name, value in own.items() if value}


def add_death(headers: Mapping[str, str], death: Death) -> tuple[dict[str, str], tuple[Death, ...]]:
    """The headers of a message that has died once more, and its history.

    A death of a known queue and reason raises that count, and moves its entry to the front.
    """
    death = replace(death, error=death.error[:_ERROR_LENGTH])
    before = read_deaths(headers)
    for known in before:
        if (known.queue, known.reason) == (death.queue, death.reason):
            ttl_ms = known.original_ttl_ms if death.original_ttl_ms is None else death.original_ttl_ms
            death = replace(death, count=known.count + 1, first_ms=known.first_ms, original_ttl_ms=ttl_ms)
    others = (known for known in before if (known.queue, known.reason) != (death.queue, death.reason))
    history = (death, *others)
    first = {"x-first-death-queue": death.queue, "x-first-death-reason": death.reason, FIRST_ID: death.id}
    if before:
        first = {name: headers.get(name, value) for name, value in first.items()}
    last = {"x-last-death-queue": death.queue, "x-last-death-reason": death.reason}
    text = json.dumps([_write(each) for each in history], ensure_ascii=False, separators=(",", ":"))
    return {**headers, **first, **last, DEATHS: text}, history


def is_cycle(history: Sequence[Death], target: str) -> bool:
    """Whether a message moved from `target` to the topic where it died last, without a rejection in between.

    RabbitMQ drops such a message: it would circle for ever.
    """
    queues = [death.queue for death in history]
    if target not in queues:
        return False
    return all(death.reason != _REJECTED for death in history[: queues.index(target) + 1])


def dead_letter_id(topic: str, group: str, id: str, died_ms: int, first_id: str) -> str:
    """The id of a dead letter in its new topic: `topic/group/id@died`. A repeated send has the same id.

    If that is too long for an id, the first id and a digest replace the id in the old topic.
    """
    name = f"{topic}/{group}/{id}@{died_ms}"
    digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:_DIGITS]
    for candidate in (name, f"{topic}/{group}/{first_id}#{digest}@{died_ms}"):
        if is_id(candidate):
            return candidate
    return f"{digest}@{died_ms}"


def stems_from(dead_id: str, id: str) -> bool:
    """Whether the id of a dead letter says that the message once had this id."""
    shortened = re.compile(rf"{re.escape(id)}#[0-9a-f]{{{_DIGITS}}}")
    while match := _DEAD_ID.fullmatch(dead_id):
        dead_id = match[1]
        if dead_id == id or shortened.fullmatch(dead_id):
            return True
    return False
