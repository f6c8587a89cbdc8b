"""The drainer: strikes the shards of before a reshard out once they hold nothing any more."""

import logging

from lisa_common.aio import AsyncConnection
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
        for name in [name for name, layout in self._discoverer.layouts.items() if layout.former]:
            try:
                drained = await self._connection.run(close_former(self._board.prefix, name))
            except OF_THE_SERVER:
                raise
            except Exception as error:  # noqa: BLE001 - of this topic alone, whatever it is
                self._complaints.about(f"drain of {name}", error)
            else:
                self._complaints.settled(f"drain of {name}")
                for count in drained:
                    logger.info("topic %s: its %d shards of before a reshard are drained", name, count)
