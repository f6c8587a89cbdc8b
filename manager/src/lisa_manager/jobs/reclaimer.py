"""The reclaimer: takes back deliveries whose visibility timeout has passed."""

import logging

from lisa_common.aio import AsyncConnection
from lisa_common.errors import OF_THE_SERVER
from lisa_common.protocol import managing
from lisa_manager.board import Board, Watched
from lisa_manager.complaints import Complaints
from lisa_manager.settings import ManagerSettings

__all__ = ["Reclaimer"]

logger = logging.getLogger(__name__)

_END = "0-0"
_STEPS = 100
"""Most steps through one group's pending list in one turn; the next turn goes on where this one ended."""

_LOOKS = 4
"""Looks within one visibility timeout: how late a reclaim may be, as a share of it."""


class Reclaimer:
    """Looks at the groups that had deliveries pending, in bounded steps, without locks."""

    def __init__(self, connection: AsyncConnection, board: Board, settings: ManagerSettings) -> None:
        self._connection = connection
        self._board = board
        self._settings = settings
        self._complaints = Complaints(logger)
        self._cursors: dict[tuple[str, str], str] = {}
        self.reclaimed = 0

    async def turn(self) -> None:
        """One turn over the topics that are due for it."""
        for name, watched in self._board.due(self._board.reclaims):
            if not watched.has_pending:
                self._board.reclaims.drop(name)
                continue
            interval = max(self._settings.housekeeping_s, watched.policy.visibility_ms / 1000 / _LOOKS)
            self._board.reclaims.put(name, self._board.clock() + min(interval, self._settings.quiet_poll_s))
            for group, pending in watched.pending.items():
                if pending:
                    try:
                        await self._reclaim(name, group, watched)
                    except OF_THE_SERVER:
                        raise
                    except Exception as error:  # noqa: BLE001 - of this group alone, whatever it is
                        self._complaints.about(f"reclaim of {name}, group {group}", error)
                    else:
                        self._complaints.settled(f"reclaim of {name}, group {group}")

    async def _reclaim(self, name: str, group: str, watched: Watched) -> None:
        cursor = self._cursors.pop((name, group), _END)
        for _ in range(_STEPS):
            step = await self._connection.call(
                managing.reclaim(
                    watched.keys, group, watched.policy, cursor=cursor, limit=self._settings.housekeeping_batch
                )
            )
            cursor = step.cursor
            if step.count:
                self.reclaimed += step.count
                logger.info(
                    "reclaimed from group %s of %s: %d to be retried, %d garbage, %d no longer wanted",
                    *(group, name, step.retry, step.garbage, step.gone),
                )
            if cursor == _END:
                return
        self._cursors[name, group] = cursor
