"""Resharding: new messages go to other shards from now on; what is there stays there until it is done."""

from collections.abc import Callable

from lisa_common.errors import InvalidInput, UnknownTopic
from lisa_common.model.keys import TOPIC_KEYS, ShardKeys, topics_key
from lisa_common.model.policy import Policy
from lisa_common.model.sharding import Layout
from lisa_common.protocol import consuming, groups, producing
from lisa_common.protocol.call import Call, Flow, command
from lisa_common.protocol.registry import amend
from lisa_common.validation import check_name
from lisa_manager.admin.group_drop import drop_in_shard
from lisa_manager.admin.missing import group_names

__all__ = ["CONTENTS", "close_former", "reshard", "take_up"]

_MOST_FORMER = 3
"""Layouts that may hold messages besides today's: each costs every send of a chosen id a look."""

CONTENTS = tuple(name for name in TOPIC_KEYS if name not in {"ready", "closed"})
"""The keys of a shard that are there while it has anything to do, besides entries of its stream."""


def reshard(prefix: str, topic: str, shards: int) -> Flow[tuple[Layout, Layout]]:
    """Spreads a topic's new messages over another number of shards. Result: the layouts before and after.

    Raises UnknownTopic, and InvalidInput before anything is written. Programs that run meanwhile lose nothing and
    send nothing twice: whoever still sends to the shards of before is told, and whoever sends to those of now asks them
    first.
    """
    return (yield from _change(prefix, topic, lambda before: _resharded(before, shards)))


def take_up(layout: Layout) -> Flow[bool]:
    """Reshards a topic that was declared anew, to the layout that it had when it was dropped.

    That can be done where that layout came of today's by reshards. Programs that still go by it, and what they have
    sent since the drop, are then no different from any others. Result: whether all of its shards are served.
    """
    _, after = yield from _change(layout.prefix, layout.topic, lambda before: _taken_up(before.policy, layout.policy))
    return {*layout.served} <= {*after.served}


def _taken_up(policy: Policy, dropped: Policy) -> Policy:
    counts, later = (*policy.former, policy.shards), (*dropped.former, dropped.shards)
    if later[: len(counts)] != counts:
        return policy
    fields = policy.model_dump(exclude_unset=True)
    return Policy.of(fields | {"shards": dropped.shards, "former": dropped.former})


def _change(prefix: str, topic: str, changed: Callable[[Layout], Policy]) -> Flow[tuple[Layout, Layout]]:
    made: set[str] = set()
    while True:
        before, stored = yield from _read(prefix, topic)
        after = Layout(prefix, topic, changed(before))
        if after.policy.former == before.policy.former:
            return before, before
        # Before it is read which groups there are: one that is made later looks for these streams.
        yield [consuming.open_stream(keys) for keys in after.ever if keys not in before.ever]
        # Each group is there before the first message.
        made |= yield from _take_over_groups(before, after)
        if (yield amend(prefix, topic, stored, after.policy)):
            break
    yield [producing.close(keys, []) for keys in before.shards]
    yield from _agree_on_groups(before, after, made)
    return before, after


def _take_over_groups(before: Layout, after: Layout) -> Flow[set[str]]:
    """Makes all groups in the new shards. Result: their names.

    Those that only the new shards have are of a reshard that was killed, and were dropped since: they go.
    """
    new = _new_shards(before, after)
    found = yield from group_names(new)
    known = yield from group_names(before.served)
    for name in sorted(found - known):
        for keys in new:
            yield from drop_in_shard(keys, name, force=False)
    for name in sorted(known):
        yield from groups.join_shards([new], name)
    return known


def _agree_on_groups(before: Layout, after: Layout, made: set[str]) -> Flow[None]:
    """Makes good what was done to groups meanwhile by those who did not look at the new shards.

    An operator may have dropped some, and programs of an earlier release made others.
    """
    new = _new_shards(before, after)
    known = yield from group_names(before.served)
    for name in sorted(made - known):
        for keys in new:
            yield from drop_in_shard(keys, name, force=True)
    for name in sorted(known - made):
        yield from groups.join_shards([new], name)


def _new_shards(before: Layout, after: Layout) -> list[ShardKeys]:
    return [keys for keys in after.served if keys not in before.served]


def _read(prefix: str, topic: str) -> Flow[tuple[Layout, bytes]]:
    stored: bytes | None = yield command("HGET", topics_key(prefix), check_name("topic", topic))
    if stored is None:
        raise UnknownTopic(topic)
    return Layout(prefix, topic, Policy.load(stored)), stored


def _resharded(before: Layout, shards: int) -> Policy:
    policy = before.policy
    fields = policy.model_dump(exclude_unset=True)
    after = Policy.of(fields | {"shards": shards, "former": (*policy.former, policy.shards)})
    if shards == policy.shards:
        return policy
    if len(before.former) >= _MOST_FORMER:
        raise InvalidInput("shards", shards, f"one more reshard, while {_MOST_FORMER} are still draining, is not")
    return after


def close_former(prefix: str, topic: str) -> Flow[list[int]]:
    """Strikes out the layouts of before a reshard whose shards hold nothing any more.

    Closes these shards, too, should the reshard not have come to it. Result: how many there were in each.
    """
    layout, stored = yield from _read(prefix, topic)
    drained = []
    for number, shards in layout.former.items():
        yield [producing.close(keys, []) for keys in shards]
        contents: list[Call[int]] = [command("EXISTS", *map(keys.of, CONTENTS)) for keys in shards]
        entries: list[Call[int]] = [command("XLEN", keys.of("ready")) for keys in shards]
        if not any((yield [*contents, *entries])):
            drained.append(number)
    if not drained:
        return []
    fields = layout.policy.model_dump(exclude_unset=True) | {"drained": (*layout.policy.drained, *drained)}
    struck = yield amend(prefix, topic, stored, Policy.of(fields))
    return [len(layout.former[number]) for number in drained] if struck else []
