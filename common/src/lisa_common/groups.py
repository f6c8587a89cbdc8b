"""Making groups, as flows: in all shards of a topic, beside others that do so at the same time, or a reshard."""

from collections.abc import Sequence
from itertools import count

from lisa_common.call import Call, Flow, command
from lisa_common.keys import TopicKeys
from lisa_common.layout import Layout
from lisa_common.protocol import consuming

__all__ = ["join", "join_shards"]

_Shards = Sequence[TopicKeys]


def join(layouts: Sequence[Layout], group: str) -> Flow[None]:
    """Makes a group in all shards of topics, where it is missing.

    A group that is the first of its topic is the first in each shard. The group misses nothing of a reshard that is
    under way: that makes its streams before it reads which groups there are, and here they are looked for after the
    group was made. So either the reshard finds the group, or the group finds the streams.
    """
    yield from join_shards([layout.served for layout in layouts], group)
    first_ahead = [layout.shard(len(layout.policy.former) + 1, 0) for layout in layouts]
    found: list[bool] = yield [_exists(keys) for keys in first_ahead]
    for layout, is_resharded in zip(layouts, found, strict=True):
        if is_resharded:
            yield from _join_ahead(layout, group)


def _join_ahead(layout: Layout, group: str) -> Flow[None]:
    """Makes the group in the shards of reshards that this layout does not know, completed or not."""
    for number in count(len(layout.policy.former) + 1):
        shards: list[TopicKeys] = []
        while (yield _exists(layout.shard(number, len(shards)))):
            shards.append(layout.shard(number, len(shards)))
        if not shards:
            return
        yield from join_shards([shards], group)


def _exists(keys: TopicKeys) -> Call[bool]:
    return command("EXISTS", keys.of("ready"), decode=bool)


def join_shards(topics: Sequence[_Shards], group: str) -> Flow[None]:
    """Makes the group in the first shard of each topic, which decides who is first, then in the others that are given.

    A group that is alone in the first shard is the topic's first. Nobody joins beside it before it is in all other
    shards: whoever made it may have died half-way.
    """
    waiting: list[tuple[_Shards, str]] = [(shards, "") for shards in topics]
    while waiting:
        # Where there are no others, there is nothing to agree on.
        alone: list[str | None] = yield [
            consuming.join_beside(shards[0], group, [known] if len(shards) > 1 else []) for shards, known in waiting
        ]
        waiting = [(shards, name) for (shards, _), name in zip(waiting, alone, strict=True) if name]
        helping = [consuming.join(keys, name) for shards, name in waiting for keys in shards[1:]]
        if helping:
            yield helping
    others = [consuming.join(keys, group) for shards in topics for keys in shards[1:]]
    if others:
        yield others
