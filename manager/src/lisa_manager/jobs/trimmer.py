"""The trimmer: removes acked entries and spent consumers, and learns which topics have deliveries pending."""

import logging

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.protocol import managing
from lisa_common.protocol.call import Call, command
from lisa_manager.board import Board, Watched
from lisa_manager.complaints import Complaints
from lisa_manager.jobs.lanes import Topics
from lisa_manager.jobs.rounds import Rounds
from lisa_manager.settings import ManagerSettings

__all__ = ["Trimmer"]

logger = logging.getLogger(__name__)


class Trimmer:
    """Looks often at topics with entries in their stream, and seldom at the others."""

    def __init__(self, connection: AsyncConnection, board: Board, settings: ManagerSettings) -> None:
        self._board = board
        self._settings = settings
        self._rounds = Rounds(connection, board, board.trims, settings, Complaints(logger))
        self.trimmed = 0

    async def turn(self) -> None:
        """One turn over the topics that are due for it."""
        await self._rounds.each(self._look)

    async def _look(self, topics: Topics) -> None:
        lengths = await self._rounds.glance(topics, _length, "trim of {}")
        now, due = self._board.clock(), []
        for name, watched, length in lengths:
            if length or watched.has_pending or now >= watched.trim_by:
                due.append((name, watched))
            else:
                self._board.trims.put(name, now + self._quiet_s(watched))
        if due:
            await self._rounds.go_on(await self._trim(due), self._trim)

    async def _trim(self, topics: Topics) -> Topics:
        """One step for each topic. Result: those that have more to do."""
        spent_ms = int(self._settings.spent_consumer_s * 1000)
        answered = await self._rounds.ask(
            topics, lambda topic: managing.trim(topic.keys, spent_ms=spent_ms), "trim of {}"
        )
        now = self._board.clock()
        for name, watched, result in answered:
            self.trimmed += result.entries
            watched.pending = result.pending
            busy = result.entries_left or watched.has_pending
            if watched.has_pending:
                self._board.reclaims.add(name, now)
            watched.trim_by = now + self._settings.spent_consumer_s
            self._board.trims.put(name, now + (self._settings.housekeeping_s if busy else self._quiet_s(watched)))
            if result.consumers:
                logger.info("removed %d spent consumers of %s", result.consumers, name)
        return [(name, watched) for name, watched, result in answered if result.more]

    def _quiet_s(self, watched: Watched) -> float:
        # Deliveries of which nobody knows yet are seen before, or when, their leases run out.
        visibility_s = watched.policy.visibility_ms / 1000
        return min(self._settings.quiet_housekeeping_s, max(visibility_s, self._settings.housekeeping_s))


def _length(topic: Watched) -> Call[int]:
    return command("XLEN", topic.keys.of("ready"))
