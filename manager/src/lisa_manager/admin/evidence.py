"""All that is known of one message, as an audit is given it."""

from dataclasses import dataclass, field

from lisa_common.model.delivery import Entry, entry_place
from lisa_common.model.failure import Failure

__all__ = ["Copy", "Evidence", "GroupState", "Head"]


@dataclass(frozen=True, slots=True)
class Head:
    """A record without its body. A cancelled record may have no times."""

    due_ms: int | None
    expires_ms: int | None = None
    cancelled: bool = False
    readable: bool = True

    def is_of(self, entry: Entry) -> bool:
        """Whether an entry is about this message, not an earlier one of the same id."""
        return self.due_ms is None or self.due_ms == entry.due_ms


@dataclass(slots=True)
class Copy:
    """What is known of one group's copy."""

    retry: float | None = None
    garbage: float | None = None
    failed: bool = False
    """Whether `failures` has it; `failure` is None all the same where that is damaged."""
    failure: Failure | None = None


@dataclass(slots=True)
class Evidence:
    """All that is known of one message."""

    id: str
    head: Head | None = None
    waiting: float | None = None
    expiring: float | None = None
    finished: float | None = None
    owed: tuple[str, ...] | None = None
    copies: dict[str, Copy] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)

    def copy(self, group: str) -> Copy:
        """The copy of a group, made if need be."""
        return self.copies.setdefault(group, Copy())


@dataclass(frozen=True, slots=True)
class GroupState:
    """How far a group is: what it was delivered last, and which entries it has not settled."""

    last: str
    pending: frozenset[str] = frozenset()

    def has(self, entry: Entry) -> bool:
        """Whether an entry is still before the group, or in the hands of one of its consumers."""
        return entry.entry in self.pending or entry_place(entry.entry) > entry_place(self.last)
