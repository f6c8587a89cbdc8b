"""The groups of a topic, and what each owes."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lisa_common.errors import UnknownGroup
from lisa_common.model.keys import ShardKeys, split_copy, text_of
from lisa_common.model.sharding import Layout
from lisa_common.protocol.call import Flow, command
from lisa_common.protocol.groups import join
from lisa_common.protocol.scanning import scan
from lisa_common.validation import check_bool, check_name
from lisa_manager import shard_groups
from lisa_manager.admin.groups.backlog import Backlog, read_backlogs
from lisa_manager.queries import PAGE, GroupInfo, consumers, group_names, groups, require_topic

__all__ = ["DroppedGroup", "GroupDebt", "create_group", "drop_group", "list_groups", "read_groups", "require_group"]

_READING_MS = 5_000
"""A consumer that read within this time is active: it would make a dropped group again at once."""


@dataclass(frozen=True, slots=True)
class GroupDebt:
    """The copies of messages that a group owes."""

    group: str
    exists: bool
    """False for a dropped group that copies of messages still name."""
    ready: int
    delivered: int
    retry: int
    garbage: int
    owed: int
    """Messages that this group and others owe. A dropped group may be named only there."""
    consumers: int
    reading: int
    """Consumers that read within the last 5 seconds."""

    @property
    def owes(self) -> bool:
        """Whether a drop would lose anything."""
        return bool(self.ready or self.delivered or self.retry or self.garbage or self.owed)


def list_groups(prefix: str, topic: str) -> Flow[list[GroupDebt]]:
    """What each group of a topic owes; raises UnknownTopic."""
    layout = yield from require_topic(prefix, topic)
    return (yield from read_groups(layout))


def create_group(prefix: str, topic: str, group: str) -> Flow[None]:
    """Makes a group in all shards, if it is missing; raises UnknownTopic and TooManyGroups."""
    check_name("group", group)
    layout = yield from require_topic(prefix, topic)
    yield from join([layout], group)


@dataclass(frozen=True, slots=True)
class DroppedGroup:
    """The outcome of a drop of a group."""

    done: bool
    """False: the group stays, as it owes messages."""
    ended: int
    """Copies of messages that were ended."""


def drop_group(prefix: str, topic: str, group: str, *, force: bool) -> Flow[DroppedGroup]:
    """Drops a group of a topic; raises UnknownTopic and UnknownGroup."""
    check_name("group", group)
    check_bool("force", force)
    layout = yield from require_topic(prefix, topic)
    known = yield from group_names(layout.served)
    if not force and any(debt.owes for debt in (yield from read_groups(layout)) if debt.group == group):
        return DroppedGroup(done=False, ended=0)
    # Also where it is gone: a drop that was interrupted may have left copies.
    ended = yield from shard_groups.drop_group(layout, group, force=force)
    if ended == 0 and group not in known:
        raise UnknownGroup(topic, group)
    return DroppedGroup(ended is not None, ended or 0)


def require_group(layout: Layout, group: str | None) -> Flow[None]:
    """Raises UnknownGroup for a group that does not exist, and that no copy of a message names; "" and None are none.

    Reads all that copies name where the group does not exist.
    """
    if not group or group in (yield from group_names(layout.served)):
        return
    if all(debt.group != group for debt in (yield from read_groups(layout))):
        raise UnknownGroup(layout.topic, group)


def read_groups(layout: Layout) -> Flow[list[GroupDebt]]:
    """What each group owes, dropped groups included, by name. Reads all of `owed`, `retry` and `garbage`."""
    by_name: dict[str, list[GroupDebt]] = defaultdict(list)
    for keys in layout.served:
        for debt in (yield from _read_shard(keys)):
            by_name[debt.group].append(debt)
    return [_sum(name, by_name[name]) for name in sorted(by_name)]


def _sum(name: str, shards: Sequence[GroupDebt]) -> GroupDebt:
    totals = {
        what: sum(getattr(debt, what) for debt in shards) for what in ("ready", "delivered", "retry", "garbage", "owed")
    }
    # A consumer reads all shards, so each of them counts it.
    consumers, reading = (max(getattr(debt, what) for debt in shards) for what in ("consumers", "reading"))
    exists = any(debt.exists for debt in shards)
    return GroupDebt(group=name, exists=exists, consumers=consumers, reading=reading, **totals)


def _read_shard(keys: ShardKeys) -> Flow[list[GroupDebt]]:
    known: list[GroupInfo] = yield groups(keys)
    length: int = yield command("XLEN", keys.of("ready"))
    backlogs = [Backlog(keys, group, length, alone=len(known) == 1) for group in known]
    yield from read_backlogs(backlogs)
    for backlog in backlogs:
        if backlog.error:
            raise backlog.error
    ready = {group.name: backlog.ready for group, backlog in zip(known, backlogs, strict=True)}
    retry = yield from _count(keys, "retry")
    garbage = yield from _count(keys, "garbage")
    owed = yield from _count(keys, "owed")
    existing = {group.name: group for group in known}
    names = sorted({*existing, *retry, *garbage, *owed} - {""})
    reading = yield from _reading(keys, list(existing))
    return [
        GroupDebt(
            group=name,
            exists=name in existing,
            ready=ready.get(name, 0),
            delivered=existing[name].pending if name in existing else 0,
            retry=retry[name],
            garbage=garbage[name],
            owed=owed[name],
            consumers=existing[name].consumers if name in existing else 0,
            reading=reading.get(name, 0),
        )
        for name in names
    ]


def _reading(keys: ShardKeys, names: Sequence[str]) -> Flow[dict[str, int]]:
    of_each: list[list[dict[str, Any]]] = (yield [consumers(keys, name) for name in names]) if names else []
    return {name: sum(info["idle"] < _READING_MS for info in infos) for name, infos in zip(names, of_each, strict=True)}


def _count(keys: ShardKeys, name: str) -> Flow[Counter[str]]:
    counts: Counter[str] = Counter()
    pages = scan(keys, name, count=PAGE)
    while not pages.done:
        for member, value in (yield from pages.next_page()):
            counts.update(text_of(value).split(",") if name == "owed" else [split_copy(text_of(member))[0]])
    return counts
