"""The reclaimer: takes back deliveries whose leases have run out."""

import asyncio
import logging
import math
from collections.abc import Iterator

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.errors import OF_THE_SERVER
from lisa_common.protocol import managing
from lisa_common.protocol.managing import Reclaimed
from lisa_manager.board import Board, Watched
from lisa_manager.complaints import Complaints
from lisa_manager.settings import ManagerSettings

__all__ = ["Reclaimer"]

logger = logging.getLogger(__name__)

_END = "0-0"

_AT_ONCE = 8
"""Topics that are looked at at the same time, so that one with much to do does not delay the others."""

_TURN_S = 1.0
"""How long one topic is looked at in one turn; the next turn resumes where this one ended."""

_LOOKS = 4
"""Looks within one visibility timeout: how late a reclaim may be, as a share of it."""


class Reclaimer:
    """Looks at the groups that had deliveries pending, in bounded steps, without locks."""

    def __init__(self, connection: AsyncConnection, board: Board, settings: ManagerSettings) -> None:
        self._connection = connection
        self._board = board
        self._settings = settings
        self._complaints = Complaints(logger)
        self._left: dict[str, dict[str, str]] = {}
        """Groups of topics that were not looked at to the end, each with its cursor."""
        self.reclaimed = 0

    async def turn(self) -> None:
        """One turn over the topics that are due for it. Raises what concerns the server, once the others are done."""
        self._left = {name: left for name, left in self._left.items() if name in self._board.topics}
        due = iter(self._board.due(self._board.reclaims))
        results = await asyncio.gather(*(self._look_at_each(due) for _ in range(_AT_ONCE)), return_exceptions=True)
        for failure in filter(None, results):
            raise failure

    async def _look_at_each(self, due: Iterator[tuple[str, Watched]]) -> None:
        # All that look at topics share the iterator.
        for name, watched in due:
            if watched.has_pending:
                await self._look(name, watched)
            else:
                self._board.reclaims.drop(name)

    async def _look(self, name: str, watched: Watched) -> None:
        """A step of each group in turn, to the end of their pending lists or of the topic's time."""
        clock = self._board.clock
        visibility_ms = watched.visibility_ms(clock())
        interval = max(self._settings.housekeeping_s, visibility_ms / 1000 / _LOOKS)
        moment = clock() + min(interval, self._settings.quiet_poll_s)
        left = self._left.pop(name, None) or {group: _END for group, pending in watched.pending.items() if pending}
        until = clock() + _TURN_S
        while left and clock() < until:
            for group, cursor in list(left.items()):
                step = await self._step(name, group, watched, cursor, visibility_ms)
                next_in_s = math.inf if step is None or step.next_in_ms is None else step.next_in_ms / 1000
                moment = min(moment, clock() + next_in_s)
                if step is None or step.cursor == _END:
                    del left[group]
                else:
                    left[group] = step.cursor
        if left:
            self._left[name] = left
        self._board.reclaims.put(name, clock() if left else moment)

    async def _step(self, name: str, group: str, watched: Watched, cursor: str, visibility_ms: int) -> Reclaimed | None:
        """One bounded step; None where it met an error that is the group's alone."""
        subject = f"reclaim of {name}, group {group}"
        limit = self._settings.housekeeping_batch
        try:
            step = await self._connection.call(
                managing.reclaim(
                    *(watched.keys, group, watched.policy), cursor=cursor, limit=limit, visibility_ms=visibility_ms
                )
            )
        except OF_THE_SERVER:
            raise
        except Exception as error:  # noqa: BLE001 - of this group alone, whatever it is
            self._complaints.about(subject, error)
            return None
        self._complaints.settled(subject)
        if step.count:
            self.reclaimed += step.count
            logger.info(
                "reclaimed from group %s of %s: %d to be retried, %d garbage, %d no longer wanted, %d released unbegun",
                *(group, name, step.retry, step.garbage, step.gone, step.released),
            )
        return step
