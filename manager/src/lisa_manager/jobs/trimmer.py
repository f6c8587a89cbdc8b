"""The trimmer: removes acked entries and spent consumers, and learns which shards have pending deliveries."""

import logging
from collections.abc import Sequence
from typing import Any

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.errors import LisaError
from lisa_common.logs import event
from lisa_common.protocol import managing
from lisa_common.protocol.call import Call, command
from lisa_common.protocol.replies import rows
from lisa_manager.jobs.batches import Batches
from lisa_manager.queries import chunks
from lisa_manager.settings import ManagerSettings
from lisa_manager.shard_table import Shards, ShardTable, WatchedShard

__all__ = ["Trimmer"]

logger = logging.getLogger(__name__)

_SILENT_S = 60.0
"""Idle time after which a worker with nothing pending is removed: a live worker shows that it is alive every few
seconds.
"""

_AT_ONCE = 1_000
"""Most shards that one command looks at."""


class Trimmer:
    """Trims shards with entries in their stream often, and the others seldom."""

    def __init__(self, connection: AsyncConnection, table: ShardTable, settings: ManagerSettings) -> None:
        self._connection = connection
        self._table = table
        self._settings = settings
        self._batches = Batches(connection, table, table.trims, settings, logger=logger, job="trim", label="trim of {}")
        self.trimmed = 0

    async def turn(self) -> None:
        """Runs one turn over the shards that are due."""
        await self._batches.run_due(self._look)

    async def _look(self, shards: Shards) -> None:
        now = self._table.clock()
        due, quiet = list[WatchedShard](), list[WatchedShard]()
        for shard in shards:
            (due if shard.has_pending or now >= shard.trim_by else quiet).append(shard)
        for some in chunks(quiet, _AT_ONCE):
            for shard, has_entries in await self._find_entries(some):
                if has_entries:
                    due.append(shard)
                else:
                    self._table.trims.put(shard.tag, now + self._quiet_s(shard))
        if due:
            await self._batches.repeat(await self._trim(due), self._trim)

    async def _find_entries(self, shards: Sequence[WatchedShard]) -> list[tuple[WatchedShard, bool]]:
        """Returns whether the stream of each shard has entries. Leaves out shards that cannot be read."""
        # One command tells, where all streams are at one node, undamaged, and the user may read them.
        (found,) = await self._connection.execute_each([_first_entries(shards)])
        if isinstance(found, LisaError):
            return await self._batches.peek_each([*shards], _has_entries)
        return [(shard, shard.keys.of("ready").encode() in found) for shard in shards]

    async def _trim(self, shards: Shards) -> Shards:
        """Runs one step for each shard. Returns the shards that have more to do."""
        spent_s = self._settings.spent_consumer_s
        silent_s = min(_SILENT_S, spent_s)
        spent_ms, silent_ms = int(spent_s * 1000), int(silent_s * 1000)
        results = await self._batches.call_each(
            shards, lambda shard: managing.trim(shard.keys, spent_ms=spent_ms, silent_ms=silent_ms)
        )
        now = self._table.clock()
        for shard, trimmed in results:
            self.trimmed += trimmed.entries
            shard.pending = trimmed.pending
            busy = trimmed.entries_left or shard.has_pending
            if shard.has_pending:
                self._table.reclaims.add(shard.tag, now)
            shard.trim_by = now + (silent_s if trimmed.pending else spent_s)
            rest_s = self._settings.housekeeping_s if busy else self._quiet_s(shard)
            self._table.trims.put(shard.tag, now + rest_s)
            if trimmed.consumers:
                fields = event("consumers_removed", **shard.place, count=trimmed.consumers)
                logger.info("removed %d spent consumers of %s", trimmed.consumers, shard.tag, extra=fields)
        return [shard for shard, trimmed in results if trimmed.more]

    def _quiet_s(self, shard: WatchedShard) -> float:
        # The trimmer has to find new deliveries by the time when their leases run out.
        visibility_s = shard.policy.visibility_ms / 1000
        return min(self._settings.quiet_housekeeping_s, max(visibility_s, self._settings.housekeeping_s))


def _first_entries(shards: Sequence[WatchedShard]) -> Call[set[bytes]]:
    """The streams with entries. It reads one of each."""
    streams = [shard.keys.of("ready") for shard in shards]
    starts = ["0"] * len(streams)
    return command("XREAD", "COUNT", 1, "STREAMS", *streams, *starts, decode=_names)


def _names(reply: Any) -> set[bytes]:
    return {name for name, _ in rows(reply or [])}


def _has_entries(shard: WatchedShard) -> Call[bool]:
    return command("XLEN", shard.keys.of("ready"), decode=bool)
