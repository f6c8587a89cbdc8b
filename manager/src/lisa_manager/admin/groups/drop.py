"""Dropping a group in all shards of a topic, beside running managers. An interrupted drop can run again to finish."""

from lisa_common.model.keys import ShardKeys
from lisa_common.model.sharding import Layout
from lisa_common.protocol.call import Flow
from lisa_manager.queries import require_topic
from lisa_manager.shard_groups import drop_in_shards

__all__ = ["drop_group"]


def drop_group(layout: Layout, group: str, *, force: bool) -> Flow[int | None]:
    """Drops a group and what is left of it in all shards; `force` also ends all copies that it owes.

    Also in those of a reshard meanwhile. Returns how many copies of messages were ended, or None: without force it was
    not dropped, as it owes.
    """
    dropped: set[ShardKeys] = set()
    ended = 0
    while left := [keys for keys in layout.served if keys not in dropped]:
        count = yield from drop_in_shards(left, group, force=force)
        if count is None:
            return None
        ended += count
        dropped.update(left)
        layout = yield from require_topic(layout.prefix, layout.topic)
    return ended
