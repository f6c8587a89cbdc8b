"""Rows of the outbox as calls of a producer."""

import json
import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from lisa_common.errors import InvalidInput
from lisa_common.model.message import Message, Outgoing, RepeatedDue
from lisa_common.model.policy import Policy
from lisa_common.validation import MAX_DELAY_S, check_int

__all__ = ["RelayedMessage", "Row"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIELDS = frozenset({"ttl_ms", "max_retries", "priority", "headers", "if_exists"})
_MOST_MS = MAX_DELAY_S * 1000


class Row(NamedTuple):
    """A waiting row, read at a moment of the monotonic clock when it was `age_ms` old.

    Other programs write rows, too, and SQLite takes values of any type. So each value is checked before it is used.
    """

    id: int
    command: str
    message_id: str
    due: Any
    options: str | None
    body: Any
    age_ms: float
    read_at: float

    def due_text(self) -> str:
        """The due time for Lisa now: the rest of the delay, or ms since 1970. Raises InvalidInput."""
        number = str(self.due).removeprefix("+")
        most_ms = _MOST_MS + (time.time() * 1000 if number == self.due else 0)
        if not re.fullmatch(r"[0-9]{1,15}", number) or int(number) > most_ms:
            raise InvalidInput("due", self.due, "ms since 1970, or +ms, up to 10 years from now")
        if number == self.due:
            return number
        # Times are cut to ms, so the age may be 1 ms less.
        passed_ms = min(max(0, self.age_ms - 1), _MOST_MS) + (time.monotonic() - self.read_at) * 1000
        return f"+{max(0, math.ceil(int(number) - passed_ms))}"

    def due_option(self) -> dict[str, Any]:
        """The due time as an option of `reschedule`. Raises InvalidInput."""
        due = self.due_text()
        time_ = timedelta(milliseconds=int(due))
        return {"delay": time_} if due.startswith("+") else {"at": _EPOCH + time_}

    def message(self, since: float) -> "RelayedMessage":
        """The message of a send that may have been tried since a moment of the monotonic clock. Raises InvalidInput."""
        # It was not tried before it was written.
        since = min(max(since, self.read_at - (self.age_ms - 1) / 1000), time.monotonic())
        try:
            options = json.loads(self.options or "{}")
        except (ValueError, RecursionError):
            raise InvalidInput("options", self.options, "JSON") from None
        if not isinstance(options, dict) or not options.keys() <= _FIELDS:
            raise InvalidInput("options", self.options, f"a JSON object of {', '.join(sorted(_FIELDS))}")
        ttl_ms = options.pop("ttl_ms", None)
        ttl = None if ttl_ms is None else check_int("ttl_ms", ttl_ms, 1, _MOST_MS) / 1000
        if not isinstance(self.body, bytes | str | memoryview | None):
            raise InvalidInput("body", self.body, "bytes or text")
        return RelayedMessage(body=self.body or b"", id=self.message_id, ttl=ttl, row=self, since=since, **options)


@dataclass(slots=True, kw_only=True)
class RelayedMessage(Message):
    """A message whose send may be a repeat, so that it undoes no cancel that came after its first try."""

    row: Row
    since: float

    def outgoing(self, policy: Policy, generated_id: str, context: Mapping[str, str] | None = None) -> Outgoing:
        """As of a message that is repeated."""
        outgoing = Message.outgoing(self, policy, generated_id, context)
        return outgoing._replace(due=RepeatedDue(self.row.due_text(), self.since))
