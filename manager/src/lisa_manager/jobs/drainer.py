"""The drainer: strikes the shards of before a reshard out once they hold nothing any more."""

import logging

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.errors import OF_THE_SERVER
from lisa_manager.board import Board
from lisa_manager.complaints import Complaints
from lisa_manager.jobs.discoverer import Discoverer
from lisa_manager.resharding import close_former

__all__ = ["Drainer"]

logger = logging.getLogger(__name__)


class Drainer:
    """Looks at the topics that were resharded, which are few."""

    def __init__(self, connection: AsyncConnection, board: Board, discoverer: Discoverer) -> None:
        self._connection = connection
        self._board = board
        self._discoverer = discoverer
        self._complaints = Complaints(logger)

    async def turn(self) -> None:
        """One turn over these topics."""
        for name, layout in [(name, layout) for name, layout in self._discoverer.layouts.items() if layout.former]:
            try:
                drained = await self._connection.run(close_former(self._board.prefix, name))
            except Exception as error:
                # One node of a Cluster may be away; the topics of others are drained all the same.
                if isinstance(error, OF_THE_SERVER) and self._connection.node_of(layout.shards[0]) is None:
                    raise
                self._complaints.about(f"drain of {name}", error)
            else:
                self._complaints.settled(f"drain of {name}")
                for count in drained:
                    logger.info("topic %s: its %d shards of before a reshard are drained", name, count)
