"""Resharding: new messages go to other shards from now on; what is there stays there until it is done."""

from collections.abc import Sequence

from lisa_common.call import Call, Flow, command
from lisa_common.errors import InvalidInput, UnknownTopic
from lisa_common.keys import TOPIC_KEYS, TopicKeys, topics_key
from lisa_common.layout import Layout
from lisa_common.policy import Policy
from lisa_common.protocol import consuming, producing
from lisa_common.topics import amend
from lisa_common.values import check_name
from lisa_manager.operator.looking import groups

__all__ = ["close_former", "reshard"]

_MOST_FORMER = 3
"""Layouts that may hold messages besides today's: each costs every send of a chosen id a look."""

_CONTENTS = tuple(name for name in TOPIC_KEYS if name not in {"ready", "closed"})


def reshard(prefix: str, topic: str, shards: int) -> Flow[tuple[Layout, Layout]]:
    """Spreads a topic's new messages over another number of shards. Result: the layouts before and after.

    Raises UnknownTopic, and InvalidInput before anything is written. Programs that run meanwhile lose nothing and
    send nothing twice: whoever still sends to the shards of before is told, and whoever sends to those of now asks them
    first.
    """
    while True:
        before, stored = yield from _read(prefix, topic)
        after = Layout(prefix, topic, _resharded(before, shards))
        if after.policy is before.policy:
            return before, before
        # Each group is there before the first message.
        yield from _join(before, after.shards)
        if (yield amend(prefix, topic, stored, after.policy)):
            break
    yield [producing.close(keys, []) for keys in before.shards]
    return before, after


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


def _join(before: Layout, shards: Sequence[TopicKeys]) -> Flow[None]:
    known = yield [groups(keys) for keys in before.served]
    names = sorted({group.name for of_shard in known for group in of_shard})
    if names:
        yield [consuming.join(keys, name) for keys in shards for name in names]


def close_former(prefix: str, topic: str) -> Flow[list[int]]:
    """Strikes out the layouts of before a reshard whose shards hold nothing any more.

    Closes these shards, too, should the reshard not have come to it. Result: how many there were in each.
    """
    layout, stored = yield from _read(prefix, topic)
    drained = []
    for number, shards in layout.former.items():
        yield [producing.close(keys, []) for keys in shards]
        contents: list[Call[int]] = [command("EXISTS", *map(keys.of, _CONTENTS)) for keys in shards]
        entries: list[Call[int]] = [command("XLEN", keys.of("ready")) for keys in shards]
        if not any((yield [*contents, *entries])):
            drained.append(number)
    if not drained:
        return []
    fields = layout.policy.model_dump(exclude_unset=True) | {"drained": (*layout.policy.drained, *drained)}
    struck = yield amend(prefix, topic, stored, Policy.of(fields))
    return [len(layout.former[number]) for number in drained] if struck else []
