"""Flows of groups: one creates a group in all shards of topics, safe beside other joins and a reshard."""

from collections.abc import Sequence
from itertools import count, repeat
from typing import NamedTuple

from lisa_common.errors import LisaError
from lisa_common.model.keys import ShardKeys
from lisa_common.model.sharding import Layout
from lisa_common.protocol import consuming
from lisa_common.protocol.call import Call, Flow, IndependentCalls, command, error_in

__all__ = ["join", "join_shards", "show_alive"]

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


def show_alive(shards: Sequence[ShardKeys], group: str, consumer: str) -> Flow[LisaError | None]:
    """Shows in all these shards that a consumer is alive. Returns the first error, of shards that are not done."""
    try:
        yield consuming.attend(shards, group, consumer)
    except LisaError:
        # One shard must not keep the others from it.
        results = yield IndependentCalls(consuming.attend([keys], group, consumer) for keys in shards)
        return error_in(results)
    return None
