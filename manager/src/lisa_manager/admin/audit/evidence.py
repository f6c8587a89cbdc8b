"""Everything that an audit knows of one message."""

from dataclasses import dataclass, field

from lisa_common.model.delivery import Entry, entry_place
from lisa_common.model.failure import Failure
from lisa_common.model.record import Head

__all__ = ["Copy", "Evidence", "GroupState"]


@dataclass(slots=True)
class Copy:
    """The facts about one group's copy."""

    retry: float | None = None
    garbage: float | None = None
    failed: bool = False
    """Whether `failures` has it. `failure` is None as well where the value is damaged."""
    failure: Failure | None = None


@dataclass(slots=True)
class Evidence:
    """Everything that is known of one message."""

    id: str
    head: Head | None = None
    waiting: float | None = None
    expiring: float | None = None
    finished: float | None = None
    owed: tuple[str, ...] | None = None
    copies: dict[str, Copy] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)

    def copy(self, group: str) -> Copy:
        """The copy of a group; adds it if it is missing."""
        return self.copies.setdefault(group, Copy())


@dataclass(frozen=True, slots=True)
class GroupState:
    """How far a group has read: the entry delivered last, and the entries that it has not settled."""

    last: str
    pending: frozenset[str] = frozenset()

    def has(self, entry: Entry) -> bool:
        """Whether the group has yet to read an entry, or one of its consumers holds it."""
        return entry.entry in self.pending or entry_place(entry.entry) > entry_place(self.last)
