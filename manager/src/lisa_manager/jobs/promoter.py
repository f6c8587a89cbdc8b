"""The promoter: sleeps until something is due, then moves it into ready."""

import asyncio
import logging
import math
import re
from collections import Counter, defaultdict
from functools import partial
from typing import Any

from lisa_common.backoff import RECONNECT
from lisa_common.client.async_connection import AsyncConnection
from lisa_common.errors import AccessDenied, LisaError
from lisa_common.logs import event
from lisa_common.model.keys import wake_channel
from lisa_common.model.scores import whole_ms
from lisa_common.observing.server_clock import ServerClock
from lisa_common.protocol import managing
from lisa_common.protocol.call import Call, command
from lisa_common.protocol.managing import Promoted
from lisa_manager.jobs.adopter import UnknownShards
from lisa_manager.jobs.batches import Batches
from lisa_manager.jobs.reporter import Reporter
from lisa_manager.metrics import METRICS, turn
from lisa_manager.problem_log import ProblemLog
from lisa_manager.settings import ManagerSettings
from lisa_manager.shard_table import Shards, ShardTable, WatchedShard

__all__ = ["Promoter"]

logger = logging.getLogger(__name__)

# Any client can publish, and a number may be too large for a clock.
_WAKE = re.compile(rb"(.+?) ([0-9]{1,15})(?: (lease|schedule))?")
"""The tag of a shard, and when a message is due; or when a lease ends that is shorter than the topic's visibility
timeout; or the version of a schedule that has changed."""

_SLOW_S = 2.0
"""How much later than its poll a look may be before the manager is not ready."""
_FULL_MS, _MOST_FULL_MS = 20, 640
"""How soon to look again at a topic that has too many messages in flight: ever later while nothing can be promoted."""

_AT_ONCE = 10
"""So many rounds may follow one another at once; more are kept apart, so that messages gather for a round trip."""

_SOON_S = 10.0
"""A shard with something due within this time is polled often, in case a wake was lost."""


def _first_due(shard: WatchedShard, key: str) -> Call[float]:
    return command("ZRANGE", shard.keys.of(key), "0", "0", "WITHSCORES", decode=_due_ms)


def _due_ms(reply: list[Any]) -> float:
    return whole_ms(reply[1]) if reply else math.inf


def _exact_ms(reply: list[Any]) -> float:
    seconds, us = reply
    return int(seconds) * 1000 + int(us) / 1000


_TIME: Call[float] = command("TIME", decode=_exact_ms)


def _next_look_ms(shard: WatchedShard, promoted: Promoted) -> float:
    """When a promotion may find something to do, by the server's clock."""
    if promoted.held != managing.TOO_MANY_IN_FLIGHT:
        shard.full_looks = 0
    if promoted.held == 0:
        return math.inf if promoted.next_due_ms is None else promoted.next_due_ms
    if promoted.held == managing.PAUSED:
        # Who ends the pause wakes us.
        return math.inf
    if promoted.held == managing.TOO_MANY_IN_FLIGHT:
        # Acks wake us. What else ends a delivery may not, such as a cancel.
        shard.full_looks = 0 if promoted.count else shard.full_looks + 1
        return promoted.now_ms + min(_FULL_MS << shard.full_looks, _MOST_FULL_MS)
    return promoted.held


class Promoter:
    """Promotes in a task for each node. Wakes only hasten this; every shard is polled as well."""

    def __init__(
        self, connection: AsyncConnection, table: ShardTable, settings: ManagerSettings, reporter: Reporter
    ) -> None:
        self._reporter = reporter
        self._connection = connection
        self._table = table
        self._settings = settings
        self.unknown_shards = UnknownShards()
        self._clocks: dict[object, ServerClock] = defaultdict(ServerClock)
        """One for each node of a Cluster, or one for the single server."""
        self._woken = asyncio.Event()
        self._listening = False
        self._failures: Counter[object] = Counter()
        """Failures of each node since its last answer."""
        self._behind: dict[object, float] = {}
        """Since when a look at each node has been under way, or has failed."""
        self._came_round = math.inf
        """When the loop last looked which shards are due."""
        self._next_round = -math.inf
        """When the loop may next look for due messages, if it has done so often of late."""
        self._problems = ProblemLog(logger)
        self._batches = Batches(
            connection, table, table.promotions, settings, logger=logger, job="promote", label="promotion of {}"
        )
        self.promoted = 0
        """Messages and retries promoted so far."""

    def find_problem(self) -> str:
        """The reason why shards are not checked in time; "" if they are."""
        now = self._table.clock()
        late_s = self._settings.quiet_poll_s + _SLOW_S
        if self._table.shards and (silent_s := now - self._came_round) > late_s:
            return f"the last look for due messages began {silent_s:.1f} s ago, more than {late_s:g} s"
        behind_s = now - min(list(self._behind.values()), default=now)
        if (fails := any(list(self._failures.values()))) or behind_s > late_s:
            return f"looks at some shards have {'failed' if fails else 'not ended'} for {behind_s:.1f} s"
        return ""

    def wake(self) -> None:
        """Has the loop look at the queue again; call it after a change of the queue."""
        self._woken.set()

    async def run(self) -> None:
        """Promotes until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                await self._sleep()
                self._came_round = self._table.clock()
                for node in self._batches.nodes.add(self._table.take_due(self._table.promotions)):
                    tasks.create_task(self._batches.nodes.serve(node, partial(self._look_patiently, node)))

    async def _sleep(self) -> None:
        while (left_s := self._left_s()) is None or left_s > 0:
            # A timeout would raise and catch two errors each time.
            timer = None if left_s is None else asyncio.get_running_loop().call_later(left_s, self._woken.set)
            await self._woken.wait()
            if timer:
                timer.cancel()
        now, resolution_s = self._table.clock(), self._settings.resolution_s
        self._next_round = max(self._next_round, now - _AT_ONCE * resolution_s)
        await asyncio.sleep(self._next_round - now)
        self._next_round += resolution_s

    def _left_s(self) -> float | None:
        """Seconds until the next shard is due, by the queue as it is now."""
        self._woken.clear()
        moment = self._table.promotions.next_moment()
        return None if moment is None else moment - self._table.clock()

    async def _look_patiently(self, node: object, shards: Shards) -> None:
        """Looks at shards of one node. While the node does not answer, all its shards wait for the next attempt."""
        self._behind.setdefault(node, self._table.clock())
        try:
            with turn("promote"):
                await self._look(shards)
        except LisaError as error:
            log = logger.debug if self._failures[node] else logger.warning
            log("cannot promote, retrying: %s", error, extra=event("promotion_failed", job="promote", error=str(error)))
        except Exception as error:  # noqa: BLE001 - no error may stop the shards of other nodes
            self._problems.report("promote", error, job="promote")
        else:
            del self._behind[node]
            if self._failures.pop(node, 0):
                logger.info("promoting again: the server is back", extra=event("promotion_recovered", job="promote"))
                self._look_at_all(node)
            self._problems.resolve("promote")
            return
        self._failures[node] += 1
        await asyncio.sleep(RECONNECT.compute(self._failures[node]))
        self._look_at_all(node)

    def _look_at_all(self, node: object) -> None:
        """Makes all shards of a node due now."""
        tags = [tag for tag, shard in self._table.shards.items() if self._node_of(shard) == node]
        if not tags:
            # Other nodes have taken its shards over.
            self._failures.pop(node, None)
            self._behind.pop(node, None)
        self._table.make_due(tags)
        self.wake()

    async def _look(self, shards: Shards) -> None:
        for shard in shards:
            shard.woken_for = math.inf
        if calm := [shard for shard in shards if shard.calm]:
            await self._peek(calm)
        if due := [shard for shard in shards if not shard.calm]:
            await self._promote(due)
        self.wake()

    async def _peek(self, shards: Shards) -> None:
        """Reads by plain commands when calm shards are due next: most have nothing to promote."""
        await self._read_clocks(shards)
        now = self._table.clock()
        for shard in shards:
            # A shard whose read fails is promoted next time, and that reports its error.
            shard.calm = False
        waiting = await self._batches.peek_each(shards, partial(_first_due, key="waiting"))
        first_waiting = {shard.tag: due_ms for shard, due_ms in waiting}
        readable = [shard for shard, _ in waiting]
        if readable and await self._batches.any_exist(readable, "retry"):
            first_due = await self._batches.peek_each(readable, partial(_first_due, key="retry"))
        else:
            first_due = waiting
        for shard, due_ms in first_due:
            self._plan(shard, min(due_ms, first_waiting[shard.tag]), now)

    async def _read_clocks(self, shards: Shards) -> None:
        shard_of = {self._node_of(shard): shard for shard in shards}
        # A call without a key goes to the node of the call before it.
        calls = [call for shard in shard_of.values() for call in (_first_due(shard, "waiting"), _TIME)]
        began = self._came_round
        times = (await self._connection.execute_each(calls))[1::2]
        arrived = self._table.clock()
        for node, now_ms in zip(shard_of, times, strict=True):
            if not isinstance(now_ms, LisaError):
                self._clocks[node].see(now_ms, began, arrived)

    def _node_of(self, shard: WatchedShard) -> object:
        return self._connection.node_of(shard.keys)

    def _clock_of(self, shard: WatchedShard) -> ServerClock:
        return self._clocks[self._node_of(shard)]

    async def _promote(self, shards: Shards) -> None:
        limit = self._settings.promote_batch
        began = self._came_round
        results = await self._batches.call_each(
            shards, lambda shard: managing.promote(shard.keys, limit=limit, with_dues=True)
        )
        now = self._table.clock()
        for shard, promoted in results:
            self._clock_of(shard).see(promoted.now_us / 1000, began, now)
            self.promoted += promoted.count
            METRICS.count("lisa_promoted_total", by=promoted.count)
            if METRICS.on:
                METRICS.observe_since("lisa_promotion_lag_seconds", promoted.now_ms, promoted.dues_ms, shard.keys.topic)
            self._reporter.note_promoted(shard.keys.topic, promoted)
            if promoted.more:
                self._next_round = -math.inf
            self._plan(shard, promoted.now_ms if promoted.more else _next_look_ms(shard, promoted), now)
            if promoted.count:
                self._table.trims.hasten(shard.tag, now + self._settings.housekeeping_s)

    def _plan(self, shard: WatchedShard, due_ms: float, now: float) -> None:
        """Queues a shard for its next due time, or for a poll before that."""
        due = max(now, min(self._clock_of(shard).begin_for(due_ms), shard.woken_for))
        quiet = self._listening and due - now > _SOON_S
        poll_s = self._settings.quiet_poll_s if quiet else self._settings.poll_s
        # Polls fall on whole multiples, so that many shards share one round trip.
        tick_s = min(poll_s, 1.0)
        poll = math.floor((now + poll_s) / tick_s) * tick_s
        shard.calm = poll < due
        self._table.promotions.put(shard.tag, min(due, poll))

    async def listen(self) -> None:
        """Listens for wakes until cancelled: a send publishes one when it is due before all other messages."""
        failures = 0
        while True:
            try:
                async for wake in self._connection.listen(wake_channel(self._table.prefix)):
                    failures = 0
                    if not self._listening:
                        # Wakes may have been missed before.
                        self._listening = True
                        self._table.make_due(self._table.shards)
                        self.wake()
                        self.unknown_shards.mark_missed()
                    if wake is not None:
                        self._hear(wake)
            except LisaError as error:
                self._listening = False
                failures += 1
                # What the server refuses for good is said once.
                log = logger.debug if failures > 1 or isinstance(error, AccessDenied) else logger.warning
                fields = event("wakes_missed", job="listen", error=str(error))
                log("not woken by sends, polling instead: %s", error, extra=fields)
                await asyncio.sleep(RECONNECT.compute(failures))

    def _hear(self, message: bytes) -> None:
        wake = _WAKE.fullmatch(message)
        if wake is None:
            logger.debug("ignored a message on the wake channel: %r", message[:80], extra=event("wake_ignored"))
            return
        tag = wake[1].decode("utf-8", "replace")
        shard = self._table.shards.get(tag)
        if shard is None:
            # Sends that are due at once publish nothing, so a lease may be the first to name a new shard.
            self.unknown_shards.add(tag)
            return
        if wake[3] == b"schedule":
            self._table.scheduled.add(shard.keys.topic)
            return
        if wake[3] == b"lease":
            self._table.expect_lease_end(tag, self._clock_of(shard).moment_of(int(wake[2])))
            return
        moment = self._clock_of(shard).begin_for(int(wake[2]))
        # A look that is under way may not have seen that send.
        shard.woken_for = min(shard.woken_for, moment)
        if self._table.promotions.hasten(tag, moment):
            shard.calm = False
            self.wake()
