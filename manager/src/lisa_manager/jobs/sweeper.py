"""The sweeper: expires messages, forgets finished ids, ages out garbage."""

import logging

from lisa_common.aio import AsyncConnection
from lisa_common.errors import LisaError
from lisa_common.protocol import managing
from lisa_common.protocol.managing import Swept
from lisa_manager.board import Board
from lisa_manager.complaints import Complaints
from lisa_manager.settings import ManagerSettings

__all__ = ["Sweeper"]

logger = logging.getLogger(__name__)

_ROUND = 200


class Sweeper:
    """Looks at a topic when it said there would be something to do, and seldom at the others."""

    def __init__(self, connection: AsyncConnection, board: Board, settings: ManagerSettings) -> None:
        self._connection = connection
        self._board = board
        self._settings = settings
        self._complaints = Complaints(logger)
        self.expired = 0
        self.aged_out = 0

    async def turn(self) -> None:
        """One turn over the topics that are due for it."""
        due = self._board.due(self._board.sweeps)
        for at in range(0, len(due), _ROUND):
            await self._sweep([name for name, _ in due[at : at + _ROUND]])

    async def _sweep(self, names: list[str]) -> None:
        watched = [self._board.topics[name] for name in names]
        limit = self._settings.housekeeping_batch
        results = await self._connection.execute_each(
            [managing.sweep(topic.keys, topic.policy, limit=limit) for topic in watched]
        )
        now = self._board.clock()
        for name, result in zip(names, results, strict=True):
            if isinstance(result, LisaError):
                self._complaints.about(f"sweep of {name}", result)
                self._board.sweeps.put(name, now + self._settings.quiet_poll_s)
            else:
                self._complaints.settled(f"sweep of {name}")
                self._board.sweeps.put(name, now + self._rest_s(result))
                self._count(name, result)

    def _rest_s(self, result: Swept) -> float:
        if result.more:
            return 0.0
        seen = self._settings.quiet_poll_s if result.next_in_ms is None else result.next_in_ms / 1000
        return min(max(seen, self._settings.housekeeping_s), self._settings.quiet_poll_s)

    def _count(self, name: str, result: Swept) -> None:
        self.expired += result.expired
        self.aged_out += result.aged_out
        if result.expired:
            logger.info("%d messages of %s have expired", result.expired, name)
        if result.aged_out:
            logger.warning("%d dead letters of %s were removed by its garbage limits", result.aged_out, name)
