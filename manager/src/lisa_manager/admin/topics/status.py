"""How many messages each topic holds, by state and group. They are read from the keys; no counters can drift."""

import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from lisa_common.errors import LisaError
from lisa_common.model.keys import ShardKeys, idle_key
from lisa_common.model.policy import Policy
from lisa_common.model.scores import PARKED_MS, whole_ms
from lisa_common.model.sharding import Layout
from lisa_common.protocol.call import Call, Flow, IndependentCalls, command
from lisa_common.protocol.consuming import server_time
from lisa_manager.admin.groups.backlog import Backlog, backlogs_of, read_backlogs
from lisa_manager.admin.topics.topic_status import BUCKETS, GroupStatus, TopicSizes, TopicStatus
from lisa_manager.queries import chunks, first_error, groups, layouts_of, scored

__all__ = ["BUCKETS", "GroupStatus", "TopicSizes", "TopicStatus", "read_sizes", "read_status", "read_status_of"]

_AT_ONCE = 250
"""Most topics, or shards, in one round trip."""
_OF_POLICY = ("dead_letter_topic", "dead_letter_delay_ms", "expire_idle_ms", "garbage_retention_ms", "paused")
_DIGITS = 15


def read_status(prefix: str, topic: str | Sequence[str] | None = None) -> Flow[list[TopicStatus]]:
    """The status of one topic, of several or of all, by name; a handful of round trips for 1,000 topics.

    Raises UnknownTopic for one unknown topic; of several, leaves it out.
    """
    layouts = yield from layouts_of(prefix, topic)
    statuses = yield from read_status_of(layouts, partial=not isinstance(topic, str))
    if expiring := [status.topic for status in statuses if status.expire_idle_ms]:
        unused = yield from _read_unused(prefix, expiring)
        return [replace(each, unused_ms=unused.get(each.topic)) if each.expire_idle_ms else each for each in statuses]
    return statuses


def read_status_of(layouts: Sequence[Layout], *, partial: bool = False) -> Flow[list[TopicStatus]]:
    """The status of these topics, except `unused_ms`.

    With `partial`, a node of a Cluster that is away damages its topics only; else its error is raised.
    """
    read: _Read[TopicStatus] = functools.partial(_read_status, partial=partial)
    return (yield from _read_topics(layouts, read, _with_policy))


def _read_unused(prefix: str, topics: Sequence[str]) -> Flow[dict[str, int | None]]:
    since, now = yield [command("HMGET", idle_key(prefix), *topics), server_time()]
    known = zip(topics, since, strict=True)
    return {topic: max(0, now - int(value)) if value and value.isdigit() else None for topic, value in known}


def read_sizes(prefix: str, topic: str | None = None) -> Flow[list[TopicSizes]]:
    """The sizes of one topic or of all, by name; raises UnknownTopic. Two or three round trips for 250 shards."""
    layouts = yield from layouts_of(prefix, topic)
    read: _Read[TopicSizes] = functools.partial(_read_sizes, partial=topic is None)
    return (yield from _read_topics(layouts, read, lambda sizes, _: sizes))


_S = TypeVar("_S", bound=TopicSizes)
_Read = Callable[[Sequence[ShardKeys]], Flow[list[_S]]]
_Calls = Callable[[ShardKeys], Iterable[Call[Any]]]


def _read_topics(layouts: Sequence[Layout], read: _Read[_S], finish: Callable[[_S, Policy], _S]) -> Flow[list[_S]]:
    """Reads some topics after the others, and finishes them at once: an event loop has other work, too."""
    finished: list[_S] = []
    for some in chunks(layouts, _AT_ONCE):
        by_topic: dict[str, list[_S]] = {layout.topic: [] for layout in some}
        for shards in chunks([keys for layout in some for keys in layout.served], _AT_ONCE):
            for sizes in (yield from read(shards)):
                by_topic[sizes.topic].append(sizes)
        finished += [finish(_sum(by_topic[layout.topic]), layout.policy) for layout in some]
    return finished


def _with_policy(status: TopicStatus, policy: Policy) -> TopicStatus:
    """The status with what the policy says of the topic."""
    fields: dict[str, Any] = {name: getattr(policy, name) for name in _OF_POLICY}
    if policy.is_limited:
        late = {} if policy.paused else status.group_late_ms
        fields |= {"late_ms": max(late.values(), default=0), "group_late_ms": late, "limits": _shown_limits(policy)}
    return replace(status, **fields)


def _shown_limits(policy: Policy) -> str:
    """What a policy limits, in words; empty where it limits nothing."""
    words = (
        ("paused", policy.paused),
        (policy.rate, policy.rate),
        (f"{policy.max_in_flight} in flight", policy.max_in_flight),
        (f"{policy.max_in_flight_per_key} in flight per key", policy.max_in_flight_per_key),
        (f"{policy.max_messages} messages", policy.max_messages),
    )
    return ", ".join(str(text) for text, is_set in words if is_set)


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
        fields["parked"] = sum(status.parked for status in statuses)
        for name in ("late_ms", "oldest_garbage_ms", "shut_ms"):
            fields[name] = max(getattr(status, name) for status in statuses)
        names = {name for status in statuses for name in status.group_late_ms}
        fields["group_late_ms"] = {n: max(status.group_late_ms.get(n, 0) for status in statuses) for n in names}
        for name in ("due_in", "retry_in"):
            fields[name] = tuple(map(sum, zip(*(getattr(status, name) for status in statuses), strict=True)))
    return replace(shards[0], **fields)


def _sum_group(name: str, shards: Sequence[GroupStatus]) -> GroupStatus:
    # A consumer reads all shards, so each of them counts it.
    consumers = max(shard.consumers for shard in shards)
    return GroupStatus(name, sum(s.ready for s in shards), sum(s.delivered for s in shards), consumers)


@dataclass(slots=True)
class _Reading:
    """The server's replies about one shard."""

    keys: ShardKeys
    sizes: list[Any]
    dues: list[Any]
    retries: list[Any] = field(default_factory=list)
    """How many of them are parked, and due within each of `BUCKETS`; empty without retries."""
    backlogs: list[Backlog] = field(default_factory=list)
    error: LisaError | None = None

    def fields(self) -> dict[str, Any]:
        """The fields of `TopicSizes`."""
        error = self.error or next((backlog.error for backlog in self.backlogs if backlog.error), None)
        if error is not None:
            return {"topic": self.keys.topic, "damage": f"{self.keys.tag}: {error}"}
        infos, _, stored, waiting, retry, garbage = self.sizes
        return {
            "topic": self.keys.topic,
            "stored": stored,
            "waiting": waiting,
            "ready": sum(backlog.ready for backlog in self.backlogs),
            "delivered": sum(group.pending for group in infos),
            "retry": retry,
            "garbage": garbage,
            "groups": tuple(
                GroupStatus(b.group.name, b.ready, b.group.pending, b.group.consumers) for b in self.backlogs if b.group
            ),
        }

    @property
    def has_retries(self) -> bool:
        """Whether there are retries to count by their due times."""
        return self.error is None and bool(self.sizes[4])

    def due_fields(self, now_ms: int, sizes: Mapping[str, Any]) -> dict[str, Any]:
        """The fields that `TopicStatus` adds."""
        shut, first_waiting, first_retry, first_garbage, parked, *due_in = self.dues
        parked_retries, *retry_in = self.retries or [0] * (1 + len(BUCKETS))
        late_ms = {b.group.name if b.group else "": b.late_ms(now_ms) for b in self.backlogs}
        dues = [whole_ms(score) for _, score in (*first_waiting, *first_retry)]
        late_ms[""] = max(0, now_ms - min(dues, default=now_ms), late_ms.get("", 0))
        return {
            "late_ms": max(late_ms.values()),
            "group_late_ms": late_ms,
            "shut_ms": max(0, shut - now_ms),
            "parked": parked + parked_retries,
            "oldest_garbage_ms": max((now_ms - whole_ms(died) for _, died in first_garbage), default=0),
            "due_in": _due_in(sizes["waiting"], parked, due_in),
            "retry_in": _due_in(sizes["retry"], parked_retries, retry_in),
        }


def _due_in(total: int, parked: int, counts: Sequence[int]) -> tuple[int, ...]:
    """Counts of a set by `BUCKETS`, and beyond. What is parked is due, though its score is beyond."""
    first, *others = counts
    # Messages move between two counts.
    return (first + parked, *others, max(0, total - parked - sum(counts)))


def _read_sizes(shards: Sequence[ShardKeys], *, partial: bool) -> Flow[list[TopicSizes]]:
    readings = yield from _read(shards, lambda _: (), exact=False, partial=partial)
    return [TopicSizes(**reading.fields()) for reading in readings]


def _read_status(shards: Sequence[ShardKeys], *, partial: bool) -> Flow[list[TopicStatus]]:
    now: int = yield server_time()
    statuses = []
    readings = yield from _read(shards, lambda keys: _due_calls(keys, now), exact=True, partial=partial)
    yield from _read_retries([reading for reading in readings if reading.has_retries], now, partial=partial)
    for reading in readings:
        fields = reading.fields()
        more = {} if "damage" in fields else reading.due_fields(now, fields)
        statuses.append(TopicStatus(**(fields | more)))
    return statuses


def _read_retries(readings: Sequence[_Reading], now_ms: int, *, partial: bool) -> Flow[None]:
    shards = [reading.keys for reading in readings]
    calls = [[_count_parked(keys, "retry"), *_bucket_calls(keys, "retry", now_ms)] for keys in shards]
    results = iter((yield IndependentCalls(call for of_shard in calls for call in of_shard)) if calls else [])
    for reading, of_shard in zip(readings, calls, strict=True):
        reading.retries = [next(results) for _ in of_shard]
        reading.error = first_error(reading.retries, partial=partial)


def _read(shards: Sequence[ShardKeys], due_calls: _Calls, *, exact: bool, partial: bool) -> Flow[list[_Reading]]:
    """Reads all shards together. A damaged shard does not keep the others from being read."""
    calls = [([*_size_calls(keys)], [*due_calls(keys)]) for keys in shards]
    results = iter((yield IndependentCalls(call for sizes, dues in calls for call in (*sizes, *dues))))
    readings = [
        _Reading(keys, [next(results) for _ in sizes], [next(results) for _ in dues])
        for keys, (sizes, dues) in zip(shards, calls, strict=True)
    ]
    for reading in readings:
        reading.error = first_error((*reading.sizes, *reading.dues), partial=partial)
        if reading.error is None:
            reading.backlogs = backlogs_of(reading.keys, *reading.sizes[:2])
    backlogs = [backlog for reading in readings for backlog in reading.backlogs]
    yield from read_backlogs(backlogs, exact=exact, partial=partial)
    return readings


def _size_calls(keys: ShardKeys) -> Iterator[Call[Any]]:
    yield groups(keys)
    yield command("XLEN", keys.of("ready"))
    # Before the garbage, so that their difference is never too low while messages die.
    yield command("HLEN", keys.of("messages"))
    for name in ("waiting", "retry", "garbage"):
        yield command("ZCARD", keys.of(name))


def _shut_until_ms(reply: bytes | None) -> int:
    # Scripts take a longer number for none.
    return int(reply) if reply and reply.isdigit() and len(reply) <= _DIGITS else 0


def _due_calls(keys: ShardKeys, now_ms: int) -> Iterator[Call[Any]]:
    yield command("HGET", keys.of("door"), "shut", decode=_shut_until_ms)
    for name in ("waiting", "retry", "garbage"):
        yield command("ZRANGE", keys.of(name), 0, 0, "WITHSCORES", decode=scored)
    yield _count_parked(keys, "waiting")
    yield from _bucket_calls(keys, "waiting", now_ms)


def _count_parked(keys: ShardKeys, name: str) -> Call[int]:
    return command("ZCOUNT", keys.of(name), PARKED_MS, f"({2 * PARKED_MS}")


def _bucket_calls(keys: ShardKeys, name: str, now_ms: int) -> Iterator[Call[Any]]:
    low: str = "-inf"
    for _, limit in BUCKETS:
        yield command("ZCOUNT", keys.of(name), low, now_ms + limit)
        low = f"({now_ms + limit}"
