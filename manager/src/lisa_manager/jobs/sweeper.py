"""The sweeper: expires messages, forgets finished ids, ages out garbage."""

import logging

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.logs import event
from lisa_common.protocol import managing
from lisa_common.protocol.call import Call, command
from lisa_common.protocol.managing import Swept
from lisa_manager.jobs.batches import Batches
from lisa_manager.jobs.reporter import Reporter
from lisa_manager.metrics import METRICS
from lisa_manager.settings import ManagerSettings
from lisa_manager.shard_table import Shards, ShardTable, WatchedShard

__all__ = ["Sweeper"]

_DATED = ("expiring", "finished", "garbage", "door")
"""The keys whose contents end by time."""

logger = logging.getLogger(__name__)


class Sweeper:
    """Sweeps a shard at the time that its last sweep gave, and quiet shards seldom."""

    def __init__(
        self, connection: AsyncConnection, table: ShardTable, settings: ManagerSettings, reporter: Reporter
    ) -> None:
        self._reporter = reporter
        self._table = table
        self._settings = settings
        self._batches = Batches(
            connection, table, table.sweeps, settings, logger=logger, job="sweep", label="sweep of {}"
        )
        self.expired = 0

    async def turn(self) -> None:
        """Runs one turn over the shards that are due."""
        await self._batches.run_due(self._look)

    async def _look(self, shards: Shards) -> None:
        if not await self._batches.any_exist(shards, *_DATED):
            self._rest(shards)
            return
        dated_keys = await self._batches.peek_each(shards, _count_dated)
        self._rest([shard for shard, count in dated_keys if not count])
        if due := [shard for shard, count in dated_keys if count]:
            await self._batches.repeat(await self._sweep(due), self._sweep)

    def _rest(self, shards: Shards) -> None:
        now = self._table.clock()
        for shard in shards:
            self._table.sweeps.put(shard.tag, now + self._quiet_s(shard))

    def _quiet_s(self, shard: WatchedShard) -> float:
        # Messages that expire here are delivered in another topic.
        is_awaited = shard.policy.dead_letter_topic is not None
        return self._settings.housekeeping_s if is_awaited else self._settings.quiet_housekeeping_s

    async def _sweep(self, shards: Shards) -> Shards:
        """Runs one step for each shard. Returns the shards that have more to do."""
        limit = self._settings.housekeeping_batch
        results = await self._batches.call_each(
            shards, lambda shard: managing.sweep(shard.keys, shard.policy, limit=limit)
        )
        now = self._table.clock()
        for shard, swept in results:
            self._table.sweeps.put(shard.tag, now + self._rest_s(shard, swept))
            self._count(shard, swept)
        return [shard for shard, swept in results if swept.more]

    def _rest_s(self, shard: WatchedShard, swept: Swept) -> float:
        if swept.more:
            return 0.0
        quiet_s = self._quiet_s(shard)
        next_in_s = quiet_s if swept.next_in_ms is None else swept.next_in_ms / 1000
        return min(max(next_in_s, self._settings.housekeeping_s), quiet_s)

    def _count(self, shard: WatchedShard, swept: Swept) -> None:
        self.expired += swept.expired
        METRICS.count("lisa_expired_total", by=swept.expired)
        if shard.policy.on_expire == "garbage":
            METRICS.count("lisa_garbage_total", "expired", by=swept.expired)
        self._reporter.note_ended(shard.keys.topic, ended=swept.expired)
        if swept.expired:
            fields = event("messages_expired", **shard.place, count=swept.expired)
            logger.info("expired %d messages of %s", swept.expired, shard.tag, extra=fields)
        METRICS.count("lisa_garbage_removed_total", by=swept.aged_out)
        if swept.aged_out:
            fields = event("garbage_removed", **shard.place, count=swept.aged_out)
            text = "removed %d dead letters of %s by its garbage limits"
            logger.warning(text, swept.aged_out, shard.tag, extra=fields)


def _count_dated(shard: WatchedShard) -> Call[int]:
    return command("EXISTS", *map(shard.keys.of, _DATED))
