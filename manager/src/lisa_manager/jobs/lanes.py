"""Lanes: the topics of each node are served by themselves, so that a slow node delays nobody else's topics."""

from collections.abc import Awaitable, Callable, Iterable

from lisa_common.model.keys import ShardKeys
from lisa_manager.board import Watched

__all__ = ["Lanes", "Topics"]

Topics = list[tuple[str, Watched]]

_BATCH = 200
"""Most topics in one round trip."""


class Lanes:
    """Topics that wait to be looked at, by the node of a Cluster that has them; one server is one lane.

    A lane is there while somebody serves it: whoever adds the first topic. What is added meanwhile is served as well.
    """

    def __init__(self, node_of: Callable[[ShardKeys], object]) -> None:
        self._node_of = node_of
        self._waiting: dict[object, dict[str, Watched]] = {}

    def add(self, topics: Iterable[tuple[str, Watched]]) -> list[object]:
        """Adds topics to the lanes of their nodes. Result: the lanes that nobody serves yet; the caller has to."""
        unserved = []
        for name, watched in topics:
            node = self._node_of(watched.keys)
            if node not in self._waiting:
                self._waiting[node] = {}
                unserved.append(node)
            self._waiting[node][name] = watched
        return unserved

    async def serve(self, node: object, work: Callable[[Topics], Awaitable[None]]) -> None:
        """Does the work for all topics of a lane, as many at once as make one round trip, until none is left."""
        waiting = self._waiting[node]
        try:
            while waiting:
                names = [name for name, _ in zip(waiting, range(_BATCH), strict=False)]
                await work([(name, waiting.pop(name)) for name in names])
        finally:
            del self._waiting[node]
