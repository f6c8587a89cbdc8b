"""How much there is of what, in every topic. Sizes are read from the structures; there are no counters to drift."""

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


@dataclass(frozen=True, slots=True)
class TopicStatus:
    """One topic. With several groups, ready, delivered, retry and garbage count each group's copy of a message."""

    topic: str
    waiting: int
    ready: int
    delivered: int
    retry: int
    garbage: int
    late_ms: int
    """For how long the oldest message has been due that was not delivered; 0 when none is."""
    due_in: tuple[int, ...]
    """Waiting messages by `BUCKETS`, and beyond."""
    groups: tuple[GroupStatus, ...]
    damage: str = ""
    """Why it, or one of its shards, could not be read; that is not counted then."""

    @property
    def messages(self) -> int:
        """All that the topic holds."""
        return self.waiting + self.ready + self.delivered + self.retry + self.garbage


def read_status(prefix: str, topic: str | None = None) -> Flow[list[TopicStatus]]:
    """The status of one topic or of all, by name; raises UnknownTopic. A handful of round trips for 1,000 topics."""
    layouts = yield from list_layouts(prefix) if topic is None else _only(prefix, topic)
    shards = [keys for layout in layouts for keys in layout.served]
    found: dict[str, list[TopicStatus]] = {layout.topic: [] for layout in layouts}
    for some in chunks(shards, _SHARDS_AT_ONCE):
        for status in (yield from _read_each(some)):
            found[status.topic].append(status)
    return [_sum(of_shards) for of_shards in found.values()]


def _only(prefix: str, topic: str) -> Flow[list[Layout]]:
    return [(yield from existing(prefix, topic))]


def _sum(shards: Sequence[TopicStatus]) -> TopicStatus:
    if len(shards) == 1:
        return shards[0]
    groups_of: dict[str, list[GroupStatus]] = defaultdict(list)
    for group in (group for shard in shards for group in shard.groups):
        groups_of[group.group].append(group)
    return TopicStatus(
        topic=shards[0].topic,
        **{
            name: sum(getattr(s, name) for s in shards)
            for name in ("waiting", "ready", "delivered", "retry", "garbage")
        },
        late_ms=max(shard.late_ms for shard in shards),
        due_in=tuple(map(sum, zip(*(shard.due_in for shard in shards), strict=True))),
        groups=tuple(_sum_group(name, groups_of[name]) for name in sorted(groups_of)),
        damage=next((shard.damage for shard in shards if shard.damage), ""),
    )


def _sum_group(name: str, shards: Sequence[GroupStatus]) -> GroupStatus:
    # A consumer reads all shards, and each of them counts it.
    consumers = max(shard.consumers for shard in shards)
    return GroupStatus(name, sum(s.ready for s in shards), sum(s.delivered for s in shards), consumers)


def _read_each(topics: Sequence[ShardKeys]) -> Flow[list[TopicStatus]]:
    """The status of each; one that the server does not tell of is no hindrance for others."""
    try:
        return (yield from _read(topics))
    except OF_THE_SERVER:
        raise
    except LisaError as error:
        if len(topics) == 1:
            return [_damaged(topics[0], error)]
    half = len(topics) // 2
    return [*(yield from _read_each(topics[:half])), *(yield from _read_each(topics[half:]))]


def _damaged(keys: ShardKeys, error: LisaError) -> TopicStatus:
    nothing = (0,) * (len(BUCKETS) + 1)
    damage = f"{keys.tag}: {error}"
    return TopicStatus(keys.topic, *(0, 0, 0, 0, 0), late_ms=0, due_in=nothing, groups=(), damage=damage)


def _read(topics: Sequence[ShardKeys]) -> Flow[list[TopicStatus]]:
    now: int = yield server_time()
    calls = [list(_calls(keys, now)) for keys in topics]
    results = iter((yield [call for of_topic in calls for call in of_topic]))
    sizes = [[next(results) for _ in of_topic] for of_topic in calls]
    backlogs = [_backlogs(keys, size) for keys, size in zip(topics, sizes, strict=True)]
    yield from read_backlogs([backlog for of_topic in backlogs for backlog in of_topic])
    return [_status(keys, now, size, of_topic) for keys, size, of_topic in zip(topics, sizes, backlogs, strict=True)]


def _calls(keys: ShardKeys, now: int) -> Iterator[Call[Any]]:
    yield groups(keys)
    yield command("XLEN", keys.of("ready"))
    for name in ("waiting", "retry", "garbage"):
        yield command("ZCARD", keys.of(name))
    for name in ("waiting", "retry"):
        yield command("ZRANGE", keys.of(name), 0, 0, "WITHSCORES", decode=scored)
    low: str = "-inf"
    for _, limit in BUCKETS:
        yield command("ZCOUNT", keys.of("waiting"), low, now + limit)
        low = f"({now + limit}"


def _backlogs(keys: ShardKeys, sizes: list[Any]) -> list[Backlog]:
    found: list[GroupInfo] = sizes[0]
    length: int = sizes[1]
    return [Backlog(keys, group, length, alone=len(found) == 1) for group in found] or [
        Backlog(keys, None, length, alone=True)
    ]


def _status(keys: ShardKeys, now: int, sizes: list[Any], backlogs: Sequence[Backlog]) -> TopicStatus:
    found, _, waiting, retry, garbage, first_waiting, first_retry, *due_in = sizes
    dues = [whole_ms(score) for _, score in (*first_waiting, *first_retry)]
    dues += [b.oldest.at_ms or b.oldest.due_ms for b in backlogs if b.oldest and b.oldest.id]
    return TopicStatus(
        topic=keys.topic,
        waiting=waiting,
        ready=sum(backlog.ready for backlog in backlogs),
        delivered=sum(group.pending for group in found),
        retry=retry,
        garbage=garbage,
        late_ms=max(0, now - min(dues, default=now)),
        due_in=(*due_in, waiting - sum(due_in)),
        groups=tuple(
            GroupStatus(b.group.name, b.ready, b.group.pending, b.group.consumers) for b in backlogs if b.group
        ),
    )
