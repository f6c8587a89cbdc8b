"""The reshard completer: reshards topics whose current shards are closed, so that they take messages again."""

import logging
from collections.abc import Sequence

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.logs import event
from lisa_common.model.keys import ShardKeys
from lisa_common.model.sharding import Layout
from lisa_common.protocol.call import command
from lisa_manager.jobs.discoverer import Discoverer
from lisa_manager.problem_log import ProblemLog
from lisa_manager.queries import PAGE, chunks
from lisa_manager.resharding import complete_reshard

__all__ = ["ReshardCompleter"]

logger = logging.getLogger(__name__)


class ReshardCompleter:
    """Looks at the current shards of all topics: a program that was suspended may close any at any time."""

    def __init__(self, connection: AsyncConnection, discoverer: Discoverer) -> None:
        self._connection = connection
        self._discoverer = discoverer
        self._problems = ProblemLog(logger)

    async def turn(self) -> None:
        """Runs one turn over all topics."""
        layouts = self._discoverer.layouts
        shards = [keys for layout in layouts.values() for keys in layout.shards]
        topics: set[str] = set()
        for page in chunks(shards, PAGE):
            topics.update(keys.topic for keys in await self._closed(page))
        for topic in sorted(topics):
            await self._complete(layouts[topic])

    async def _closed(self, shards: Sequence[ShardKeys]) -> list[ShardKeys]:
        names = [keys.of("closed") for keys in shards]
        # Mostly none is. One command tells, where all are at one node.
        (count,) = await self._connection.execute_each([command("EXISTS", *names)])
        if count == 0:
            return []
        counts = await self._connection.execute_each([command("EXISTS", name) for name in names])
        return [keys for keys, count in zip(shards, counts, strict=True) if count == 1]

    async def _complete(self, layout: Layout) -> None:
        # Its limits may forbid so many shards, or a node of a Cluster be away.
        with self._problems.watching(f"shards of {layout.topic}", topic=layout.topic):
            if await self._connection.run(complete_reshard(layout)):
                fields = event("reshard_completed", topic=layout.topic)
                text = "completed a reshard of topic %s: its shards were closed for later ones"
                logger.warning(text, layout.topic, extra=fields)
