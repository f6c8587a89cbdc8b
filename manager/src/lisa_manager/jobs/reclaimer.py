"""The reclaimer: takes back deliveries whose leases have run out."""

import asyncio
import logging
import math
from collections.abc import Iterator

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.errors import OF_THE_SERVER
from lisa_common.logs import event
from lisa_common.protocol import managing
from lisa_common.protocol.managing import Reclaimed
from lisa_manager.jobs.reporter import Reporter
from lisa_manager.metrics import METRICS
from lisa_manager.problem_log import ProblemLog
from lisa_manager.settings import ManagerSettings
from lisa_manager.shard_table import ShardTable, WatchedShard

__all__ = ["Reclaimer"]

logger = logging.getLogger(__name__)

_END = "0-0"

_PARALLEL = 8
"""Shards that are reclaimed in parallel, so that a busy one does not delay the others."""

_TURN_S = 1.0
"""Most seconds for one shard in one turn; the next turn resumes where this one ended."""

_LOOKS = 4
"""How often leases are checked within one visibility timeout; so a reclaim is late by one part of it."""


class Reclaimer:
    """Reclaims from the groups with pending deliveries, in bounded steps, without locks."""

    def __init__(
        self, connection: AsyncConnection, table: ShardTable, settings: ManagerSettings, reporter: Reporter
    ) -> None:
        self._reporter = reporter
        self._connection = connection
        self._table = table
        self._settings = settings
        self._problems = ProblemLog(logger)
        self._unfinished: dict[str, dict[str, str]] = {}
        """The cursors of groups that a turn did not finish, by shard and group."""
        self.reclaimed = 0

    async def turn(self) -> None:
        """Runs one turn over the shards that are due. Raises an error of the server once all tasks have ended."""
        self._unfinished = {tag: cursors for tag, cursors in self._unfinished.items() if tag in self._table.shards}
        due = iter(self._table.take_due(self._table.reclaims))
        results = await asyncio.gather(*(self._look_at_each(due) for _ in range(_PARALLEL)), return_exceptions=True)
        for failure in filter(None, results):
            raise failure

    async def _look_at_each(self, due: Iterator[WatchedShard]) -> None:
        # All tasks share the iterator.
        for shard in due:
            if shard.has_pending:
                await self._look(shard)
            else:
                self._table.reclaims.drop(shard.tag)

    async def _look(self, shard: WatchedShard) -> None:
        """Takes a step for each group in turn, until all pending lists are read or the shard's time is up."""
        clock = self._table.clock
        visibility_ms = shard.visibility_ms(clock())
        interval = max(self._settings.housekeeping_s, visibility_ms / 1000 / _LOOKS)
        moment = clock() + min(interval, self._settings.quiet_poll_s)
        cursors = self._unfinished.pop(shard.tag, None)
        cursors = cursors or {group: _END for group, pending in shard.pending.items() if pending}
        until = clock() + _TURN_S
        while cursors and clock() < until:
            for group, cursor in list(cursors.items()):
                step = await self._step(shard, group, cursor, visibility_ms)
                next_in_s = math.inf if step is None or step.next_in_ms is None else step.next_in_ms / 1000
                moment = min(moment, clock() + next_in_s)
                if step is None or step.cursor == _END:
                    del cursors[group]
                else:
                    cursors[group] = step.cursor
        if cursors:
            self._unfinished[shard.tag] = cursors
        self._table.reclaims.put(shard.tag, clock() if cursors else moment)

    async def _step(self, shard: WatchedShard, group: str, cursor: str, visibility_ms: int) -> Reclaimed | None:
        """Takes one bounded step; returns None on an error of this group alone."""
        subject = f"reclaim of {shard.tag}, group {group}"
        limit = self._settings.housekeeping_batch
        try:
            step = await self._connection.call(
                managing.reclaim(
                    *(shard.keys, group, shard.policy), cursor=cursor, limit=limit, visibility_ms=visibility_ms
                )
            )
        except OF_THE_SERVER:
            raise
        except Exception as error:  # noqa: BLE001 - no error of one group may stop the others
            METRICS.count("lisa_manager_errors_total", "reclaim")
            self._problems.report(subject, error, job="reclaim", group=group, **shard.place)
            return None
        self._problems.resolve(subject)
        if step.count:
            self.reclaimed += step.count
            for outcome, count in step.outcomes.items():
                METRICS.count("lisa_reclaimed_total", outcome, by=count)
            METRICS.count("lisa_garbage_total", "abandoned", by=step.garbage - step.expired)
            METRICS.count("lisa_garbage_total", "expired", by=step.expired)
            METRICS.count("lisa_expired_total", by=step.expired)
            self._reporter.note_ended(shard.keys.topic, timeouts=step.retry + step.garbage, ended=step.garbage)
            logger.info(
                "reclaimed %d deliveries of group %s of %s: %d to retry, %d garbage, %d no longer wanted, %d unbegun",
                *(step.count, group, shard.tag, step.retry, step.garbage, step.gone, step.released),
                extra=event("deliveries_reclaimed", **shard.place, group=group, count=step.count, **step.outcomes),
            )
        return step
