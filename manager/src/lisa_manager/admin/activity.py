"""Activity: who did what to how many messages, in one stream of bounded length, for the people who share a queue."""

import re
from dataclasses import dataclass
from typing import Any, Final

from lisa_common.errors import InvalidInput
from lisa_common.model.keys import activity_key, bytes_of, text_of
from lisa_common.protocol.call import Flow, command
from lisa_common.protocol.replies import pairs
from lisa_common.validation import check_int

__all__ = ["Activity", "note", "read"]

_KEPT: Final = 10_000
"""About so many actions are kept, the latest."""

_MOST: Final = 1_000
_ENTRY: Final = re.compile(r"[1-9][0-9]{0,14}-[0-9]{1,15}")
_LONGEST: Final = 1_000
"""Characters of a text that are kept."""


@dataclass(frozen=True, slots=True)
class Activity:
    """One action of an operator."""

    who: str
    what: str
    """As in "replay" or "set policy"."""
    topic: str = ""
    """The topic, empty for an action on none."""
    count: int = 1
    """How many messages, topics or schedules it changed."""
    detail: str = ""
    """A message id, a filter, or changed fields."""
    at_ms: int = 0
    """When it was noted, by the server's clock; set by the server."""
    entry: str = ""
    """Its place in the list, for `before`; set by the server."""


def note(prefix: str, done: Activity) -> Flow[None]:
    """Adds an action to the list."""
    if not isinstance(done, Activity):
        raise InvalidInput("done", done, "an Activity")
    texts = (("who", done.who), ("what", done.what), ("topic", done.topic), ("detail", done.detail))
    fields = [word for name, text in texts for word in (name, bytes_of(text[:_LONGEST]))]
    yield command(
        *("XADD", activity_key(prefix), "MAXLEN", "~", _KEPT, "*", *fields, "count", done.count), repeatable=False
    )


def read(prefix: str, limit: int, before: str | None) -> Flow[list[Activity]]:
    """The latest actions, newest first; with `before`, those that are older than this entry."""
    check_int("limit", limit, 1, _MOST)
    last = "+" if before is None else f"({_check_entry(before)}"
    rows: list[Activity] = yield command("XREVRANGE", activity_key(prefix), last, "-", "COUNT", limit, decode=_rows)
    return rows


def _check_entry(value: object) -> str:
    if not isinstance(value, str) or not _ENTRY.fullmatch(value):
        raise InvalidInput("before", value, "the entry of an action")
    return value


def _rows(reply: list[Any]) -> list[Activity]:
    return [_activity(text_of(entry), {text_of(n): text_of(v) for n, v in pairs(values)}) for entry, values in reply]


def _activity(entry: str, fields: dict[str, str]) -> Activity:
    count = fields.get("count", "")
    return Activity(
        fields.get("who", ""),
        fields.get("what", ""),
        fields.get("topic", ""),
        int(count) if count.isascii() and count.isdigit() else 0,
        fields.get("detail", ""),
        int(entry.partition("-")[0]),
        entry,
    )
