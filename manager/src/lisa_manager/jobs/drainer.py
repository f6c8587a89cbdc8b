"""The drainer: removes former shards once they are empty."""

import logging

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.errors import OF_THE_SERVER
from lisa_common.logs import event
from lisa_manager.jobs.discoverer import Discoverer
from lisa_manager.problem_log import ProblemLog
from lisa_manager.resharding import close_former

__all__ = ["Drainer"]

logger = logging.getLogger(__name__)


class Drainer:
    """Checks the topics with former shards, which are few."""

    def __init__(self, connection: AsyncConnection, discoverer: Discoverer) -> None:
        self._connection = connection
        self._discoverer = discoverer
        self._problems = ProblemLog(logger)

    async def turn(self) -> None:
        """Runs one turn over these topics. Raises an error of the server, where all topics are on one."""
        for layout in [layout for layout in self._discoverer.layouts.values() if layout.former]:
            subject = f"drain of {layout.topic}"
            try:
                drained = await self._connection.run(close_former(layout.prefix, layout.topic))
            except Exception as error:
                # One node of a Cluster may be away; the topics of the others are drained all the same.
                if isinstance(error, OF_THE_SERVER) and self._connection.node_of(layout.shards[0]) is None:
                    raise
                self._problems.report(subject, error, job="drain", topic=layout.topic)
            else:
                self._problems.resolve(subject)
                for count in drained:
                    fields = event("shards_drained", topic=layout.topic, count=count)
                    logger.info("drained %d former shards of topic %s", count, layout.topic, extra=fields)
