"""The sizes and the status of a topic, as operators get them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["BUCKETS", "GroupStatus", "TopicSizes", "TopicStatus"]

_MINUTE, _HOUR, _DAY = 60_000, 3_600_000, 86_400_000

BUCKETS: tuple[tuple[str, int], ...] = (
    ("0-1 min", _MINUTE),
    ("-10 min", 10 * _MINUTE),
    ("-30 min", 30 * _MINUTE),
    ("-1 h", _HOUR),
    ("-6 h", 6 * _HOUR),
    ("-1 d", _DAY),
    ("-7 d", 7 * _DAY),
    ("-30 d", 30 * _DAY),
)
"""How soon waiting messages fall due: names and upper limits in ms. The first bucket includes overdue messages; later
ones than the last limit are "beyond"."""

_LATE_MS = 30_000
"""A topic is late from this age on: a working manager and idle workers need less than a second."""

_VERY_LATE_MS = 300_000


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """One group of a topic."""

    group: str
    ready: int
    """Copies that no consumer has read yet."""
    delivered: int
    """Copies that consumers hold."""
    consumers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSizes:
    """The sizes of one topic. With several groups, all but `stored` and `waiting` count each group's copy."""

    topic: str
    stored: int = 0
    """Messages with a record, in whatever state."""
    waiting: int = 0
    ready: int = 0
    delivered: int = 0
    retry: int = 0
    garbage: int = 0
    groups: tuple[GroupStatus, ...] = ()
    damage: str = ""
    """Why the topic, or one of its shards, could not be read. What could not be read is not counted."""

    @property
    def messages(self) -> int:
        """The sum of all states."""
        return self.waiting + self.ready + self.delivered + self.retry + self.garbage


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicStatus(TopicSizes):
    """The sizes of one topic, when its messages are or were due, and what its policy limits."""

    late_ms: int = 0
    """How long the oldest undelivered message has been due, in ms; 0 where none is, and while the topic is paused."""
    group_late_ms: Mapping[str, int] = field(default_factory=dict)
    """The same by group, and for "" of messages that managers have yet to make ready, or that no group has."""
    paused: bool = False
    """Whether nothing becomes ready, by the policy."""
    shut_ms: int = 0
    """For how many ms from now nothing becomes ready, as a handler raised `RateLimited`."""
    limits: str = ""
    """What the policy limits, in words: "paused, 100/s, 5 in flight, 1000 messages"."""
    parked: int = 0
    """Waiting messages, and copies to be retried, that are due once others of their key are done."""
    due_in: tuple[int, ...] = (0,) * (len(BUCKETS) + 1)
    """Waiting messages by `BUCKETS`, and beyond."""
    retry_in: tuple[int, ...] = (0,) * (len(BUCKETS) + 1)
    """Copies to be retried, likewise."""
    dead_letter_topic: str | None = None
    """The topic to which its garbage is moved."""
    dead_letter_delay_ms: int = 0
    expire_idle_ms: int | None = None
    """It is dropped after this time without use."""
    oldest_garbage_ms: int = 0
    """How long ago the oldest of its garbage became garbage, in ms; 0 where there is none."""
    garbage_retention_ms: int = 0
    """After this time garbage is removed."""
    unused_ms: int | None = None
    """How long it has been unused, as far as managers know; None for a topic that does not expire, or was just used."""

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong with the topic, the worst first."""
        problems = ["cannot be read"] if self.damage else []
        problems += ["late"] if self.late_ms >= _LATE_MS else []
        problems += [f"{group.group}: no consumers" for group in self.groups if group.ready and not group.consumers]
        problems += ["garbage"] if self.garbage else []
        return tuple(problems)

    @property
    def urgency(self) -> tuple[int, int, str]:
        """Sorts topics: first those that cannot be read, then late ones, without readers, with garbage; by name."""
        unread = any(group.ready and not group.consumers for group in self.groups)
        if self.damage:
            return 0, 0, self.topic
        if self.late_ms >= _VERY_LATE_MS:
            return 1, -self.late_ms, self.topic
        if self.late_ms >= _LATE_MS or unread:
            return 2, -self.late_ms, self.topic
        # By name, so that rows keep their places.
        return 3 if self.garbage else 4, 0, self.topic
