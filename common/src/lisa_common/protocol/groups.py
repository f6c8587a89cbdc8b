"""Flows of groups: one creates a group in all shards of topics, safe beside other joins and a reshard."""

from collections.abc import Sequence
from itertools import count, repeat
from typing import NamedTuple

from lisa_common.errors import OF_A_NODE, LisaError, NoGroup
from lisa_common.model.keys import ShardKeys
from lisa_common.model.sharding import Layout
from lisa_common.protocol import consuming
from lisa_common.protocol.call import Call, Flow, IndependentCalls, Once, command, error_in
from lisa_common.protocol.side_by_side import run_each

__all__ = ["join", "join_each", "join_shards", "show_alive"]

_Shards = Sequence[ShardKeys]


def join(layouts: Sequence[Layout], group: str) -> Flow[None]:
    """Creates a group in all shards of topics, where it is missing.

    The first group of a topic is the first in each shard. The group misses no message of a concurrent reshard: a
    reshard creates its streams before it reads the groups, and a join checks for new streams after it created the
    group. So either the reshard sees the group, or the join sees the streams.

    Raises TooManyGroups if a topic has as many other groups as its policy allows.
    """
    most = [layout.policy.max_groups for layout in layouts]
    yield from join_shards([layout.served for layout in layouts], group, most=most)
    next_shards = [layout.shard(len(layout.policy.former) + 1, 0) for layout in layouts]
    resharded: list[bool] = yield [_exists(keys) for keys in next_shards]
    for layout, is_resharded in zip(layouts, resharded, strict=True):
        if is_resharded:
            yield from _join_ahead(layout, group)


def _join_ahead(layout: Layout, group: str) -> Flow[None]:
    """Creates the group in the shards of later reshards, completed or not."""
    for number in count(len(layout.policy.former) + 1):
        shards: list[ShardKeys] = []
        while (yield _exists(layout.shard(number, len(shards)))):
            shards.append(layout.shard(number, len(shards)))
        if not shards:
            return
        yield from join_shards([shards], group)


def _exists(keys: ShardKeys) -> Call[bool]:
    return command("EXISTS", keys.of("ready"), decode=bool)


class _Waiting(NamedTuple):
    """A topic that a group has yet to join."""

    shards: _Shards
    most: int
    first: str = ""
    """The only group in the first shard, if known."""


def join_shards(topics: Sequence[_Shards], group: str, *, most: Sequence[int] = ()) -> Flow[None]:
    """Creates the group in the first shard of each topic, which decides which group is first, then in its others.

    The only group in the first shard is the topic's first. Before another joins, it completes that group in all other
    shards, as its creator may have died half-way. `most` limits the groups in the first shard of each topic.
    """
    waiting = [_Waiting(*topic) for topic in zip(topics, most or repeat(0), strict=False)]
    while waiting:
        # A topic of one shard needs no agreement.
        alone: list[str | None] = yield [
            consuming.join_beside(
                topic.shards[0], group, [topic.first] if len(topic.shards) > 1 else [], most=topic.most
            )
            for topic in waiting
        ]
        waiting = [topic._replace(first=name) for topic, name in zip(waiting, alone, strict=True) if name]
        completions = [consuming.join(keys, topic.first) for topic in waiting for keys in topic.shards[1:]]
        if completions:
            yield completions
    others = [consuming.join(keys, group) for shards in topics for keys in shards[1:]]
    if others:
        yield others


def join_each(layouts: Sequence[Layout], group: str, consumer: str) -> Flow[tuple[set[ShardKeys], set[ShardKeys]]]:
    """Joins a group in topics, as far as the nodes of a Cluster answer; without patience, which is for the read.

    Returns the shards that have the group, and those that lack it, as other shards of their topics are away. Shards
    that are away themselves are in neither set: a read tells of them, and reads the others all the same. Raises what is
    wrong with a topic itself.
    """
    errors = yield from run_each([join([layout], group) for layout in layouts], width=len(layouts), kind=Once)
    joined, unsure = set[ShardKeys](), list[ShardKeys]()
    for layout, error in zip(layouts, errors, strict=True):
        if error is None:
            joined.update(layout.served)
        elif isinstance(error, OF_A_NODE):
            unsure += layout.served
        else:
            raise error
    results = (yield Once(consuming.attend([keys], group, consumer) for keys in unsure)) if unsure else ()
    lacking = {keys for keys, result in zip(unsure, results, strict=True) if isinstance(result, NoGroup)}
    return joined, lacking


def show_alive(shards: Sequence[ShardKeys], group: str, consumer: str) -> Flow[LisaError | None]:
    """Shows in all these shards that a consumer is alive. Returns the first error, of shards that are not done."""
    try:
        yield consuming.attend(shards, group, consumer)
    except LisaError:
        # One shard must not keep the others from it.
        results = yield IndependentCalls(consuming.attend([keys], group, consumer) for keys in shards)
        return error_in(results)
    return None
