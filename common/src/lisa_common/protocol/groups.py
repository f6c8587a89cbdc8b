"""Making groups, as flows: in all shards of a topic, beside others that do so at the same time, or a reshard."""

from collections.abc import Sequence
from itertools import count, repeat
from typing import NamedTuple

from lisa_common.model.keys import ShardKeys
from lisa_common.model.sharding import Layout
from lisa_common.protocol import consuming
from lisa_common.protocol.call import Call, Flow, command

__all__ = ["join", "join_shards"]

_Shards = Sequence[ShardKeys]


def join(layouts: Sequence[Layout], group: str) -> Flow[None]:
    """Makes a group in all shards of topics, where it is missing.

    A group that is the first of its topic is the first in each shard. The group misses nothing of a reshard that is
    under way: that makes its streams before it reads which groups there are, and here they are looked for after the
    group was made. So either the reshard finds the group, or the group finds the streams.

    Raises TooManyGroups where a topic has as many others as its policy allows.
    """
    most = [layout.policy.max_groups for layout in layouts]
    yield from join_shards([layout.served for layout in layouts], group, most=most)
    first_ahead = [layout.shard(len(layout.policy.former) + 1, 0) for layout in layouts]
    found: list[bool] = yield [_exists(keys) for keys in first_ahead]
    for layout, is_resharded in zip(layouts, found, strict=True):
        if is_resharded:
            yield from _join_ahead(layout, group)


def _join_ahead(layout: Layout, group: str) -> Flow[None]:
    """Makes the group in the shards of reshards that this layout does not know, completed or not."""
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
    """A topic that a group has still to join."""

    shards: _Shards
    most: int
    first: str = ""
    """The group that is alone in the first shard, as far as is known."""


def join_shards(topics: Sequence[_Shards], group: str, *, most: Sequence[int] = ()) -> Flow[None]:
    """Makes the group in the first shard of each topic, which decides who is first, then in the others that are given.

    A group that is alone in the first shard is the topic's first. Nobody joins beside it before it is in all other
    shards: whoever made it may have died half-way. With `most`, the first shard of each topic takes no more groups.
    """
    waiting = [_Waiting(*each) for each in zip(topics, most or repeat(0), strict=False)]
    while waiting:
        # Where there are no others, there is nothing to agree on.
        alone: list[str | None] = yield [
            consuming.join_beside(each.shards[0], group, [each.first] if len(each.shards) > 1 else [], most=each.most)
            for each in waiting
        ]
        waiting = [each._replace(first=name) for each, name in zip(waiting, alone, strict=True) if name]
        helping = [consuming.join(keys, each.first) for each in waiting for keys in each.shards[1:]]
        if helping:
            yield helping
    others = [consuming.join(keys, group) for shards in topics for keys in shards[1:]]
    if others:
        yield others
