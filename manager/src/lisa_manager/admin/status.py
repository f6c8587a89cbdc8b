"""How many messages each topic holds, by state and group. They are read from the keys; no counters can drift."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lisa_common.errors import OF_THE_SERVER, LisaError
from lisa_common.model.keys import ShardKeys
from lisa_common.model.scores import whole_ms
from lisa_common.model.sharding import Layout
from lisa_common.protocol.call import Call, Flow, command
from lisa_common.protocol.consuming import server_time
from lisa_manager.admin.backlog import Backlog, read_backlogs
from lisa_manager.admin.queries import GroupInfo, chunks, existing, groups, list_layouts, scored

__all__ = ["BUCKETS", "GroupStatus", "TopicStatus", "read_status"]

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
"""How soon waiting messages fall due: names and upper limits in ms. What is overdue is in the first; what is later than
the last is "beyond"."""

_SHARDS_AT_ONCE = 250


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """One group of a topic."""

    group: str
    ready: int
    delivered: int
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
    """The sizes of one topic, and when its messages are or were due."""

    late_ms: int = 0
    """How long the oldest undelivered message has been due, in ms; 0 where none is."""
    due_in: tuple[int, ...] = (0,) * (len(BUCKETS) + 1)
    """Waiting messages by `BUCKETS`, and beyond."""


def read_status(prefix: str, topic: str | None = None) -> Flow[list[TopicStatus]]:
    """The status of one topic or of all, by name; raises UnknownTopic. A handful of round trips for 1,000 topics."""
    return (yield from _read_topics(prefix, topic, _read_status))


def read_sizes(prefix: str, topic: str | None = None) -> Flow[list[TopicSizes]]:
    """The sizes of one topic or of all, by name; raises UnknownTopic. Two round trips for 250 shards, as a rule."""
    return (yield from _read_topics(prefix, topic, _read_sizes))


_S = TypeVar("_S", bound=TopicSizes)
_Read = Callable[[Sequence[ShardKeys]], Flow[list[_S]]]


def _read_topics(prefix: str, topic: str | None, read: _Read[_S]) -> Flow[list[_S]]:
    layouts = (yield from list_layouts(prefix)) if topic is None else [(yield from existing(prefix, topic))]
    by_topic: dict[str, list[_S]] = {layout.topic: [] for layout in layouts}
    for shards in chunks([keys for layout in layouts for keys in layout.served], _SHARDS_AT_ONCE):
        for sizes in (yield from _read_each(shards, read)):
            by_topic[sizes.topic].append(sizes)
    return [_sum(of_shards) for of_shards in by_topic.values()]


_STATES = ("stored", "waiting", "ready", "delivered", "retry", "garbage")


def _sum(shards: Sequence[_S]) -> _S:
    if len(shards) == 1:
        return shards[0]
    groups_of: dict[str, list[GroupStatus]] = defaultdict(list)
    for group in (group for shard in shards for group in shard.groups):
        groups_of[group.group].append(group)
    fields: dict[str, Any] = {name: sum(getattr(shard, name) for shard in shards) for name in _STATES}
    fields["groups"] = tuple(_sum_group(name, groups_of[name]) for name in sorted(groups_of))
    fields["damage"] = next((shard.damage for shard in shards if shard.damage), "")
    if statuses := [shard for shard in shards if isinstance(shard, TopicStatus)]:
        fields["late_ms"] = max(status.late_ms for status in statuses)
        fields["due_in"] = tuple(map(sum, zip(*(status.due_in for status in statuses), strict=True)))
    return replace(shards[0], **fields)


def _sum_group(name: str, shards: Sequence[GroupStatus]) -> GroupStatus:
    # A consumer reads all shards, and each of them counts it.
    consumers = max(shard.consumers for shard in shards)
    return GroupStatus(name, sum(s.ready for s in shards), sum(s.delivered for s in shards), consumers)


def _read_each(shards: Sequence[ShardKeys], read: _Read[_S]) -> Flow[list[_S]]:
    """The sizes of each shard. One that cannot be read gets its error, and does not keep the others from being read."""
    try:
        return (yield from read(shards))
    except OF_THE_SERVER:
        raise
    except LisaError as error:
        if len(shards) == 1:
            return [_damaged(shards[0], error, read)]
    half = len(shards) // 2
    return [*(yield from _read_each(shards[:half], read)), *(yield from _read_each(shards[half:], read))]
