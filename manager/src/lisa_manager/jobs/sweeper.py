"""The sweeper: expires messages, forgets finished ids, ages out garbage."""

import logging

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.protocol import managing
from lisa_common.protocol.call import Call, command
from lisa_common.protocol.managing import Swept
from lisa_manager.board import Board, Watched
from lisa_manager.complaints import Complaints
from lisa_manager.jobs.lanes import Topics
from lisa_manager.jobs.rounds import Rounds
from lisa_manager.settings import ManagerSettings

__all__ = ["Sweeper"]

_DATED = ("expiring", "finished", "garbage")
"""The keys that hold what ends by itself."""

logger = logging.getLogger(__name__)


class Sweeper:
    """Looks at a topic when it said there would be something to do, and seldom at the others."""

    def __init__(self, connection: AsyncConnection, board: Board, settings: ManagerSettings) -> None:
        self._board = board
        self._settings = settings
        self._rounds = Rounds(connection, board, board.sweeps, settings, Complaints(logger))
        self.expired = 0
        self.aged_out = 0

    async def turn(self) -> None:
        """One turn over the topics that are due for it."""
        await self._rounds.each(self._look)

    async def _look(self, topics: Topics) -> None:
        if not await self._rounds.any_there(topics, *_DATED):
            self._rest([name for name, _ in topics])
            return
        found = await self._rounds.glance(topics, _count_dated, "sweep of {}")
        self._rest([name for name, _, dated in found if not dated])
        if due := [(name, watched) for name, watched, dated in found if dated]:
            await self._rounds.go_on(await self._sweep(due), self._sweep)

    def _rest(self, names: list[str]) -> None:
        moment = self._board.clock() + self._settings.quiet_housekeeping_s
        for name in names:
            self._board.sweeps.put(name, moment)

    async def _sweep(self, topics: Topics) -> Topics:
        """One step for each topic. Result: those that have more to do."""
        limit = self._settings.housekeeping_batch
        answered = await self._rounds.ask(
            topics, lambda topic: managing.sweep(topic.keys, topic.policy, limit=limit), "sweep of {}"
        )
        now = self._board.clock()
        for name, _, result in answered:
            self._board.sweeps.put(name, now + self._rest_s(result))
            self._count(name, result)
        return [(name, watched) for name, watched, result in answered if result.more]

    def _rest_s(self, result: Swept) -> float:
        if result.more:
            return 0.0
        quiet_s = self._settings.quiet_housekeeping_s
        seen = quiet_s if result.next_in_ms is None else result.next_in_ms / 1000
        return min(max(seen, self._settings.housekeeping_s), quiet_s)

    def _count(self, name: str, result: Swept) -> None:
        self.expired += result.expired
        self.aged_out += result.aged_out
        if result.expired:
            logger.info("%d messages of %s have expired", result.expired, name)
        if result.aged_out:
            logger.warning("%d dead letters of %s were removed by its garbage limits", result.aged_out, name)


def _count_dated(topic: Watched) -> Call[int]:
    return command("EXISTS", *map(topic.keys.of, _DATED))
