"""Which messages of a topic a list or an operation is about. Its text is the query of the page that shows them."""

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Self
from urllib.parse import urlencode

from lisa_common.cli.parse import read_duration, read_moment
from lisa_common.errors import InvalidInput
from lisa_common.validation import check_name, moment_ms
from lisa_manager import REASONS, Failure, GarbageFilter, ListedMessage, State

__all__ = ["STATES", "Selection", "read_due", "without_contents"]

STATES = ("waiting", "ready", "delivered", "retry", "garbage")
_LONGEST = 500
_CONTENTS = ("header", "body", "error")
"""Filters by what messages hold, or what quotes it."""

_OF_CONTENTS = re.compile(rf"\b({'|'.join(_CONTENTS)})=[^&\s]*")
_FIELDS = ("group", "reason", "age", "since", "release", "header", "body", "error", "id", "to", "order")
_ORDERS = ("newest", "oldest")


@dataclass(frozen=True, slots=True)
class Selection:
    """Messages of one state, by the fields that are not empty."""

    topic: str
    state: State
    given: dict[str, str] = field(default_factory=dict)
    """The filters as they were typed, by name."""
    as_of: datetime | None = None
    """The moment that ages count from, and before which messages came; None for the time when it is used."""

    @classmethod
    def of(cls, topic: str, fields: dict[str, str], *, sees_bodies: bool) -> Self:
        """The selection of a query or a form. Raises InvalidInput."""
        return cls.as_typed(topic, fields, sees_bodies=sees_bodies).check()

    @classmethod
    def as_typed(cls, topic: str, fields: dict[str, str], *, sees_bodies: bool) -> Self:
        """The same, with filters that may be wrong."""
        state = fields.get("state", "") or "waiting"
        if state not in STATES:
            raise InvalidInput("state", state, f"one of {', '.join(STATES)}")
        given = {name: fields[name].strip() for name in _FIELDS if fields.get(name, "").strip()}
        if not sees_bodies and (hidden := given.keys() & _CONTENTS):
            name = min(hidden)
            raise InvalidInput(name, given[name], "absent, as you may not see headers and bodies, which errors quote")
        as_of = read_moment("as_of", fields["as_of"]) if fields.get("as_of") else None
        return cls(topic, State(state), given, as_of)

    def check(self) -> Self:
        """Returns the selection. Raises InvalidInput for a filter that no message can match."""
        given = self.given
        for name, text in given.items():
            if len(text) > _LONGEST:
                raise InvalidInput(name, f"{len(text)} characters", f"at most {_LONGEST} characters")
        if group := given.get("group"):
            check_name("group", group)
            if self.state == "waiting":
                raise InvalidInput("group", group, "empty for waiting messages, which no group has yet")
        if given.get("reason", REASONS[0]) not in REASONS:
            raise InvalidInput("reason", given["reason"], f"one of {', '.join(REASONS)}")
        for name in given.keys() & {"age", "since"}:
            read_duration(name, given[name])
        if given.get("order", _ORDERS[0]) not in _ORDERS:
            raise InvalidInput("order", given["order"], f"one of {', '.join(_ORDERS)}")
        if "to" in given:
            read_moment("to", given["to"])
        return self

    @property
    def group(self) -> str | None:
        """Only copies of this group."""
        return self.given.get("group")

    @property
    def text(self) -> str:
        """As a query."""
        as_of = {"as_of": self.as_of.isoformat()} if self.as_of else {}
        return urlencode({"state": self.state.value, **self.given, **as_of}, errors="surrogateescape")

    @property
    def is_filtered(self) -> bool:
        """Whether it leaves out any message of the state."""
        return bool(self.given.keys() - {"to", "order"})

    @property
    def newest_first(self) -> bool:
        """Whether those that died last come first."""
        return self.state is State.GARBAGE and self.given.get("order") != "oldest"

    @property
    def needs_look(self) -> bool:
        """Whether each message has to be looked at, beyond what dead letters are selected by."""
        return bool(self.given.keys() & {"header", "body", "id"})

    @property
    def garbage_filter(self) -> GarbageFilter:
        """What dead letters are selected by."""
        given = self.given
        age, since = (read_duration(name, given[name]) if name in given else None for name in ("age", "since"))
        return GarbageFilter(
            *(self.group, given.get("reason"), age),
            error=given.get("error"),
            since=since,
            release=given.get("release"),
            as_of=self.as_of,
        )

    @property
    def target(self) -> datetime | None:
        """The new due time of a reschedule."""
        return read_moment("to", self.given["to"]).astimezone(UTC) if "to" in self.given else None

    @property
    def target_ms(self) -> int | None:
        """The same in ms since 1970."""
        return round(self.target.timestamp() * 1000) if self.target else None

    def matches(self, message: ListedMessage) -> bool:
        """Returns True if the selection, which has a moment, selects a message of its state and group."""
        as_of_ms = moment_ms("as_of", self.as_of)
        given, record, age_ms = self.given, message.record, as_of_ms - message.at_ms
        if _came_ms(message) >= as_of_ms or abs(age_ms) < read_duration("age", given.get("age", "0")) * 1000:
            return False
        if "since" in given and age_ms > read_duration("since", given["since"]) * 1000:
            return False
        if not self._matches_failure(message.failure):
            return False
        if "id" in given and given["id"] not in message.id:
            return False
        if "body" in given and (record is None or given["body"].encode("utf-8", "surrogateescape") not in record.body):
            return False
        return "header" not in given or (record is not None and _has_header(record.headers, given["header"]))

    def _matches_failure(self, failure: Failure | None) -> bool:
        given = self.given
        if given.get("error", "").lower() not in (failure.error if failure else "").lower():
            return False
        return all(
            name not in given or given[name] == value
            for name, value in (
                ("reason", failure.reason if failure else "unknown"),
                ("release", failure.release if failure else ""),
            )
        )


def _came_ms(message: ListedMessage) -> int:
    """The latest time that is known to be before a message came into its state."""
    sent_ms = message.record.sent_ms if message.record else 0
    if message.state in {State.GARBAGE, State.READY}:
        return max(sent_ms, message.at_ms)
    return max(sent_ms, message.failure.at_ms if message.failure else 0)


def read_due(field: str, text: str) -> float | datetime:
    """A new due time as people type it: a time from now in seconds, or a moment. Raises InvalidInput."""
    if any(mark in text for mark in ("T", "-", " ")):
        return read_moment(field, text).astimezone(UTC)
    if not text:
        raise InvalidInput(field, text, "a time from now, as in 15m, or a moment, as in 2026-01-31T12:00:00+01:00")
    return read_duration(field, text)


def without_contents(text: str) -> str:
    """The text of a selection, without the filters' values that may quote bodies and headers."""
    return _OF_CONTENTS.sub(r"\1=…", text)


def _has_header(headers: object, text: str) -> bool:
    name, equals, value = text.partition("=")
    known = {key.lower(): content for key, content in headers.items()} if isinstance(headers, dict) else {}
    found = known.get(name.strip().lower())
    return found is not None and (not equals or value.strip() in found)
