"""The drainer: moves schedules out of former shards, and removes these once they are empty."""

import logging
import time
from typing import Final

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.logs import event
from lisa_common.model.sharding import Layout
from lisa_manager.jobs.discoverer import Discoverer
from lisa_manager.problem_log import ProblemLog
from lisa_manager.resharding import close_former

__all__ = ["Drainer"]

logger = logging.getLogger(__name__)

_SETTLED_S: Final = 15.0
"""For so long the registry names a layout before schedules move to it: by then all programs know it, and consumers read
its shards, and no crash of the server takes it back."""


class Drainer:
    """Checks the topics with former shards, which are few."""

    def __init__(self, connection: AsyncConnection, discoverer: Discoverer) -> None:
        self._connection = connection
        self._discoverer = discoverer
        self._problems = ProblemLog(logger)
        self._since: dict[str, tuple[tuple[int, ...], float]] = {}
        """The former layouts of each topic, and since when this manager knows them."""

    async def turn(self) -> None:
        """Runs one turn over these topics. Raises an error of the server, where all topics are on one."""
        layouts = [layout for layout in self._discoverer.layouts.values() if layout.former]
        self._since = {layout.topic: self._since_of(layout) for layout in layouts}
        for layout in layouts:
            may_move = time.monotonic() - self._since[layout.topic][1] >= _SETTLED_S
            node = self._connection.node_of(layout.shards[0])
            # One node of a Cluster may be away; the topics of the others are drained all the same.
            with self._problems.watching(f"drain of {layout.topic}", node=node, job="drain", topic=layout.topic):
                drained = await self._connection.run(close_former(layout.prefix, layout.topic, may_move=may_move))
                for count in drained:
                    fields = event("shards_drained", topic=layout.topic, count=count)
                    logger.info("drained %d former shards of topic %s", count, layout.topic, extra=fields)

    def _since_of(self, layout: Layout) -> tuple[tuple[int, ...], float]:
        former = tuple(layout.policy.former)
        known = self._since.get(layout.topic)
        return known if known is not None and known[0] == former else (former, time.monotonic())
