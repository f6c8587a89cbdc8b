"""The dead letterer: moves garbage to the dead letter topic of its topic."""

import logging
from dataclasses import dataclass

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.logs import event
from lisa_common.model.policy import Policy
from lisa_common.protocol.call import Call, command
from lisa_common.protocol.paging import START, Point
from lisa_common.protocol.registry import Topics
from lisa_manager.dead_lettering import Moved, move_page
from lisa_manager.jobs.batches import Batches
from lisa_manager.metrics import METRICS
from lisa_manager.problem_log import ProblemLog
from lisa_manager.settings import ManagerSettings
from lisa_manager.shard_table import Shards, ShardTable, WatchedShard

__all__ = ["DeadLetterer"]

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Progress:
    """How far a manager has read the garbage of a shard. Letters that stay lie behind `point`."""

    policy: Policy
    point: Point = START
    kept: int = 0
    oldest_kept_ms: int | None = None
    excess: int = 0
    """Letters to remove by the limit of garbage."""
    rescan_from: float = 0.0
    """The moment from which the garbage may be read from its beginning again."""

    def restart(self, count: int) -> None:
        """Reads from the beginning again, because `count` letters stay: more than the limit, or more than are known."""
        # An operator may have purged some of those that stay; then they are counted first.
        self.excess = max(0, self.kept - self.policy.garbage_max_messages) if self.kept == count else 0
        self.point, self.kept, self.oldest_kept_ms = START, 0, None

    def note(self, moved: Moved) -> None:
        """Notes a page."""
        self.point = moved.rest
        self.kept += moved.kept
        self.excess = max(0, self.excess - moved.aged_out)
        oldest = [ms for ms in (self.oldest_kept_ms, moved.oldest_kept_ms) if ms is not None]
        self.oldest_kept_ms = min(oldest, default=None)

    def is_complete(self, count: int, now_ms: int) -> bool:
        """Whether all garbage has to stay, and none of it exceeds a limit."""
        policy, oldest_ms = self.policy, self.oldest_kept_ms
        is_old = oldest_ms is not None and oldest_ms <= now_ms - policy.garbage_retention_ms
        return count <= self.kept <= policy.garbage_max_messages and not is_old


class DeadLetterer:
    """Looks at the shards whose policy names a dead letter topic, as often as the other housekeeping."""

    def __init__(self, connection: AsyncConnection, table: ShardTable, settings: ManagerSettings) -> None:
        self._connection = connection
        self._table = table
        self._settings = settings
        self._topics = Topics(settings.prefix)
        self._batches = Batches(
            connection,
            table,
            table.dead_letters,
            settings,
            logger=logger,
            job="dead-letter",
            label="dead letters of {}",
        )
        self._problems = ProblemLog(logger)
        self._progress: dict[str, _Progress] = {}

    async def turn(self) -> None:
        """Runs one turn over the shards that are due."""
        self._progress = {tag: known for tag, known in self._progress.items() if tag in self._table.shards}
        await self._batches.run_due(self._look)

    async def _look(self, shards: Shards) -> None:
        for shard in shards:
            if shard.policy.dead_letter_topic is None:
                self._table.dead_letters.drop(shard.tag)
                self._progress.pop(shard.tag, None)
        watched = [shard for shard in shards if shard.policy.dead_letter_topic is not None]
        self._rest(watched)
        if not watched or not await self._batches.any_exist(watched, "garbage"):
            return
        counts = await self._batches.peek_each(watched, _count)
        if busy := [shard for shard, count in counts if count]:
            await self._batches.repeat(busy, self._move_each)

    def _rest(self, shards: Shards) -> None:
        moment = self._table.clock() + self._settings.housekeeping_s
        for shard in shards:
            self._table.dead_letters.put(shard.tag, moment)

    async def _move_each(self, shards: Shards) -> Shards:
        """Moves a page of each shard. Returns the shards with more."""
        return [shard for shard in shards if await self._move(shard)]

    async def _move(self, shard: WatchedShard) -> bool:
        subject = f"dead letters of {shard.tag} to {shard.policy.dead_letter_topic}"
        progress = self._progress.get(shard.tag)
        if progress is None or progress.policy != shard.policy:
            progress = self._progress[shard.tag] = _Progress(shard.policy)
        page = move_page(shard.keys, shard.policy, self._topics, progress.point, excess=progress.excess)
        try:
            moved = await self._connection.run(page)
            self._count(shard, moved)
            progress.note(moved)
            if moved.error:
                raise moved.error  # noqa: TRY301 - of the new topic alone, and handled like others
            more = not moved.at_end or await self._has_more(shard, progress, moved.now_ms)
        except Exception as error:  # noqa: BLE001 - no error of one topic may stop the others
            self._problems.report(subject, error)
            self._table.dead_letters.put(shard.tag, self._table.clock() + self._settings.poll_s)
            return False
        self._problems.resolve(subject)
        return more

    async def _has_more(self, shard: WatchedShard, progress: _Progress, now_ms: int) -> bool:
        """Whether to read the garbage from its beginning now, because it differs from the letters that stayed."""
        count = await self._connection.call(_count(shard))
        now = self._table.clock()
        if progress.is_complete(count, now_ms) or now < progress.rescan_from:
            return False
        progress.rescan_from = now + self._settings.quiet_poll_s
        progress.restart(count)
        return count > 0

    def _count(self, shard: WatchedShard, moved: Moved) -> None:
        if moved.moved:
            METRICS.count("lisa_dead_letters_moved_total", shard.keys.topic, by=moved.moved)
            logger.info(
                "moved %d dead letters of %s to %s",
                moved.moved,
                shard.tag,
                shard.policy.dead_letter_topic,
                extra=event("dead_letters_moved", **shard.place, count=moved.moved),
            )
        if moved.kept:
            logger.warning(
                "%d dead letters of %s stay in its garbage: in a cycle without a rejection, or unreadable",
                *(moved.kept, shard.tag),
                extra=event("dead_letters_kept", **shard.place, count=moved.kept),
            )
        METRICS.count("lisa_garbage_removed_total", by=moved.aged_out)
        if moved.aged_out:
            logger.warning(
                "removed %d dead letters of %s by its garbage limits",
                moved.aged_out,
                shard.tag,
                extra=event("garbage_removed", **shard.place, count=moved.aged_out),
            )


def _count(shard: WatchedShard) -> Call[int]:
    return command("ZCARD", shard.keys.of("garbage"))
