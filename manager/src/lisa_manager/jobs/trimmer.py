"""The trimmer: removes acked entries and spent consumers, and learns which topics have deliveries pending."""

import logging

from lisa_common.aio import AsyncConnection
from lisa_common.errors import LisaError
from lisa_common.protocol import managing
from lisa_manager.board import Board
from lisa_manager.complaints import Complaints
from lisa_manager.settings import ManagerSettings

__all__ = ["Trimmer"]

logger = logging.getLogger(__name__)

_ROUND = 200


class Trimmer:
    """Looks often at topics with entries in their stream, and seldom at the others."""

    def __init__(self, connection: AsyncConnection, board: Board, settings: ManagerSettings) -> None:
        self._connection = connection
        self._board = board
        self._settings = settings
        self._complaints = Complaints(logger)
        self.trimmed = 0

    async def turn(self) -> None:
        """One turn over the topics that are due for it."""
        due = self._board.due(self._board.trims)
        for at in range(0, len(due), _ROUND):
            await self._trim([name for name, _ in due[at : at + _ROUND]])

    async def _trim(self, names: list[str]) -> None:
        spent_ms = int(self._settings.spent_consumer_s * 1000)
        results = await self._connection.execute_each(
            [managing.trim(self._board.topics[name].keys, spent_ms=spent_ms) for name in names]
        )
        now = self._board.clock()
        for name, result in zip(names, results, strict=True):
            watched = self._board.topics.get(name)
            if watched is None:
                continue
            if isinstance(result, LisaError):
                self._complaints.about(f"trim of {name}", result)
                self._board.trims.put(name, now + self._settings.quiet_poll_s)
                continue
            self._complaints.settled(f"trim of {name}")
            self.trimmed += result.entries
            watched.pending = result.pending
            busy = result.entries_left or any(result.pending.values())
            visibility_s = watched.policy.visibility_ms / 1000
            quiet_s = min(self._settings.quiet_poll_s, max(visibility_s / 2, self._settings.housekeeping_s))
            self._board.trims.put(name, now + (self._settings.housekeeping_s if busy else quiet_s))
            if result.consumers:
                logger.info("removed %d spent consumers of %s", result.consumers, name)
