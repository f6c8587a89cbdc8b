"""A queue of shards for each node, so that a slow node delays no shards of other nodes."""

from collections.abc import Awaitable, Callable, Iterable

from lisa_common.model.keys import ShardKeys
from lisa_manager.shard_table import Shards, WatchedShard

__all__ = ["NodeQueues"]

_BATCH = 200
"""Most shards in one round trip."""


class NodeQueues:
    """Shards that wait for work, by their node of a Cluster; a single server has one queue.

    A queue exists while a task serves it. The task also serves shards that are added meanwhile.
    """

    def __init__(self, node_of: Callable[[ShardKeys], object]) -> None:
        self._node_of = node_of
        self._waiting: dict[object, dict[str, WatchedShard]] = {}

    def add(self, shards: Iterable[WatchedShard]) -> list[object]:
        """Queues shards at their nodes. Returns the nodes with a new queue, which the caller must serve."""
        unserved = []
        for shard in shards:
            node = self._node_of(shard.keys)
            if node not in self._waiting:
                self._waiting[node] = {}
                unserved.append(node)
            self._waiting[node][shard.tag] = shard
        return unserved

    async def serve(self, node: object, work: Callable[[Shards], Awaitable[None]]) -> None:
        """Does the work for the shards of a node, one round trip's worth at a time, until none is left."""
        waiting = self._waiting[node]
        try:
            while waiting:
                tags = [tag for tag, _ in zip(waiting, range(_BATCH), strict=False)]
                await work([waiting.pop(tag) for tag in tags])
        finally:
            del self._waiting[node]
