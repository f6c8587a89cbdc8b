"""What an audit may find wrong, and the steps that mend it."""

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Kind", "Problem", "Step"]

Step = tuple[str, str, str, str | int]
"""Verb, name, member, value: as `lua/repair.lua` takes them."""


class Kind(StrEnum):
    """What may be wrong."""

    LOST = "lost"
    """A record without a place, or a group that owes the message and has it nowhere."""
    STRAY = "stray"
    """A place without a record, or in a group that does not owe the message."""
    TWICE = "twice"
    """In more than one place at once."""
    OWED = "owed"
    """What `owed` says does not fit the rest."""
    DEAD_GROUP = "dead group"
    """Something names a group that is not there any more: `group drop` ends it."""
    MISSING_GROUP = "missing group"
    """A shard of the topic lacks a group that others have: it gets nothing of what becomes ready there."""
    DANGLING = "dangling"
    """A failure, an expiry or a tombstone of nothing."""
    UNWATCHED = "unwatched"
    """It has a time to live that nobody looks at."""
    WRONG_TIME = "wrong time"
    """It waits for another time than its record names."""
    DAMAGED = "damaged"
    """The topic, or a shard of it, cannot be read as it should be."""
    FOREIGN = "foreign"
    """It has an id, or is something, that no program of ours writes or reads."""
    UNREADABLE = "unreadable"
    """A record that this release cannot read."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with one message; without `steps` it cannot be mended safely."""

    kind: Kind
    id: str
    group: str
    detail: str
    steps: tuple[Step, ...] = ()
