"""The problems that an audit may find, and the steps that repair them."""

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Kind", "Problem", "Step"]

Step = tuple[str, str, str, str | int]
"""Verb, name, member and value of a step of `lua/repair.lua`."""


class Kind(StrEnum):
    """The kinds of problems."""

    LOST = "lost"
    """A record without a place, or a group that owes the message and has it in no place."""
    STRAY = "stray"
    """A place without a record, or in a group that does not owe the message."""
    TWICE = "twice"
    """In more than one place at once."""
    OWED = "owed"
    """`owed` contradicts the other keys."""
    DEAD_GROUP = "dead group"
    """A key names a dropped group; `group drop` removes this."""
    MISSING_GROUP = "missing group"
    """A shard lacks a group that the other shards have. The group gets no messages from that shard."""
    LIMITS = "limits"
    """What limits a shard is not what the topic's policy says. Managers mend that within seconds."""
    CLOSED = "closed"
    """A shard takes no new messages, but the registry names no other shards for them. Managers mend that within seconds
    where the shard tells the layout."""
    SLOTS = "slots"
    """Messages hold slots of their keys though they have ended, or wait for slots that are free."""
    DANGLING = "dangling"
    """A failure, an expiry or a tombstone without a message."""
    UNWATCHED = "unwatched"
    """The message has a time to live, but is not among the expiring ones."""
    WRONG_TIME = "wrong time"
    """The message waits for another time than its record says."""
    DAMAGED = "damaged"
    """The topic, or one of its shards, cannot be read."""
    FOREIGN = "foreign"
    """No program of Lisa writes or reads such an id or member."""
    UNREADABLE = "unreadable"
    """A record that this release cannot read."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem of one message. Without `steps` it cannot be repaired safely."""

    kind: Kind
    id: str
    group: str
    detail: str
    steps: tuple[Step, ...] = ()
