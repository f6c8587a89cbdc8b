"""The asyncio client of operators."""

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeVar

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.client.async_start import wait_for_server
from lisa_common.client.closing import AsyncClosing
from lisa_common.errors import AccessDenied, LisaError
from lisa_common.model.keys import events_channel
from lisa_common.model.pattern_policies import PatternPolicy
from lisa_common.model.policy import Policy
from lisa_common.model.record import Record
from lisa_common.protocol.call import PING, Flow
from lisa_common.protocol.managers import find_absence
from lisa_common.protocol.managing import AbortOutcome
from lisa_common.protocol.producing import CancelOutcome, Found, RescheduleOutcome, State
from lisa_common.protocol.registry import Topic, Topics
from lisa_common.settings import Settings
from lisa_common.validation import Duration
from lisa_manager.admin import (
    bulk,
    by_id,
    check,
    groups,
    listing,
    patterns,
    reshard,
    schedule_changes,
    schedule_sends,
    schedules,
    status,
    topics,
    traffic,
)
from lisa_manager.admin.async_observing_client import AsyncObservingAdmin
from lisa_manager.admin.bulk import ALL_GARBAGE, BulkResult, GarbageFilter, GarbageList, OnProgress
from lisa_manager.admin.cancel_many import ALL_WAITING, WaitingFilter, cancel_many
from lisa_manager.admin.check import CheckReport
from lisa_manager.admin.events import TopicEvents, read_events
from lisa_manager.admin.garbage_summary import GarbageSummary, summarize
from lisa_manager.admin.groups import DroppedGroup, GroupDebt
from lisa_manager.admin.listing import MessagePage
from lisa_manager.admin.patterns import Explained, PatternChange
from lisa_manager.admin.queries import require_topic
from lisa_manager.admin.reshard import ReshardResult
from lisa_manager.admin.schedule_changes import ImportedSchedules
from lisa_manager.admin.schedule_sends import Backfilled
from lisa_manager.admin.schedules import ScheduleState
from lisa_manager.admin.status import TopicSizes, TopicStatus
from lisa_manager.admin.topics import Dropped
from lisa_manager.admin.trace import Hop, trace
from lisa_manager.admin.traffic import TopicTraffic
from lisa_manager.jobs import loader
from lisa_manager.server_checks import Health, examine, judge_roles, read_version
from lisa_manager.server_facts import ServerFacts, read_facts, read_time
from lisa_manager.settings import ManagerSettings

__all__ = ["AsyncAdmin"]

T = TypeVar("T")


class AsyncAdmin(AsyncObservingAdmin, AsyncClosing):
    """Looks into topics and operates them, from asyncio tasks. Promises what `Admin` promises."""

    def __init__(self, url: str | None = None, *, settings: Settings | None = None, patience_s: float = 0.0) -> None:
        self._settings = settings or ManagerSettings.load(redis_url=url)
        self._prefix = self._settings.prefix
        self._patience_s = patience_s
        self._connection = AsyncConnection.of(self._settings, name="lisa-operator", url=url)

    async def sizes(self, topic: str | None = None) -> list[TopicSizes]:
        """See `Admin.sizes`."""
        return await self._run(status.read_sizes(self._prefix, topic))

    async def status(self, topic: str | Sequence[str] | None = None) -> list[TopicStatus]:
        """See `Admin.status`."""
        return await self._run(status.read_status(self._prefix, topic))

    async def traffic(self, topic: str | Sequence[str] | None = None) -> list[TopicTraffic]:
        """See `Admin.traffic`."""
        return await self._run(traffic.read_traffic(self._prefix, topic))

    async def find(self, topic: str, id: str) -> Found | None:
        """See `Admin.find`."""
        return await self._run(by_id.find(self._prefix, topic, id))

    async def trace(self, topic: str, id: str) -> tuple[Hop, ...]:
        """See `Admin.trace`."""
        return await self._run(trace(self._prefix, topic, id))

    async def messages(
        self,
        topic: str,
        state: State,
        *,
        group: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
        newest_first: bool = False,
    ) -> MessagePage:
        """See `Admin.messages`."""
        flow = listing.list_messages(
            self._prefix, topic, state, group=group, limit=limit, cursor=cursor, newest_first=newest_first
        )
        return await self._run(flow)

    async def records(self, topic: str, ids: Sequence[str]) -> dict[str, Record]:
        """See `Admin.records`."""
        return await self._run(by_id.records(self._prefix, topic, ids))

    async def abort(self, topic: str, id: str) -> AbortOutcome:
        """See `Admin.abort`."""
        return await self._run(by_id.abort(self._prefix, topic, id))

    async def cancel(self, topic: str, ids: Sequence[str]) -> dict[str, CancelOutcome]:
        """See `Admin.cancel`."""
        return await self._run(by_id.cancel(self._prefix, topic, ids))

    async def cancel_many(
        self,
        topic: str,
        where: WaitingFilter = ALL_WAITING,
        *,
        dry_run: bool = False,
        on_progress: OnProgress | None = None,
    ) -> BulkResult:
        """See `Admin.cancel_many`."""
        flow = cancel_many(self._prefix, topic, where, dry_run=dry_run, on_progress=on_progress)
        return await self._run(flow)

    async def reschedule(
        self, topic: str, ids: Sequence[str], *, delay: Duration | None = None, at: datetime | None = None
    ) -> dict[str, RescheduleOutcome]:
        """See `Admin.reschedule`."""
        return await self._run(by_id.reschedule(self._prefix, topic, ids, delay=delay, at=at))

    async def garbage(
        self, topic: str, where: GarbageFilter = ALL_GARBAGE, *, limit: int = 50, oldest_first: bool = False
    ) -> GarbageList:
        """See `Admin.garbage`."""
        return await self._run(bulk.dead_letters(self._prefix, topic, where, limit, oldest_first=oldest_first))

    async def summarize_garbage(
        self, topic: str, where: GarbageFilter = ALL_GARBAGE, *, limit: int = 100_000
    ) -> GarbageSummary:
        """See `Admin.summarize_garbage`."""
        return await self._run(summarize(self._prefix, topic, where, limit))

    async def count_garbage(self, topic: str, where: GarbageFilter = ALL_GARBAGE) -> int:
        """See `Admin.count_garbage`."""
        return await self._run(bulk.count(self._prefix, topic, where))

    async def replay(
        self,
        topic: str,
        ids: Sequence[str],
        where: GarbageFilter = ALL_GARBAGE,
        *,
        on_progress: OnProgress | None = None,
    ) -> BulkResult:
        """See `Admin.replay`."""
        return await self._run(bulk.replay(self._prefix, topic, by_id.id_list(ids), where, on_progress))

    async def replay_all(
        self, topic: str, where: GarbageFilter = ALL_GARBAGE, *, on_progress: OnProgress | None = None
    ) -> BulkResult:
        """See `Admin.replay_all`."""
        return await self._run(bulk.replay(self._prefix, topic, None, where, on_progress))

    async def purge(
        self,
        topic: str,
        ids: Sequence[str],
        where: GarbageFilter = ALL_GARBAGE,
        *,
        on_progress: OnProgress | None = None,
    ) -> BulkResult:
        """See `Admin.purge`."""
        return await self._run(bulk.purge(self._prefix, topic, by_id.id_list(ids), where, on_progress))

    async def purge_all(
        self, topic: str, where: GarbageFilter = ALL_GARBAGE, *, on_progress: OnProgress | None = None
    ) -> BulkResult:
        """See `Admin.purge_all`."""
        return await self._run(bulk.purge(self._prefix, topic, None, where, on_progress))

    async def topics(self) -> list[Topic]:
        """See `Admin.topics`."""
        return await self._run(topics.list_topics(self._prefix))

    async def create_topic(self, topic: str, **fields: Any) -> bool:
        """See `Admin.create_topic`."""
        return await self._run(topics.create_topic(self._prefix, topic, fields))

    async def drop_topic(self, topic: str, *, force: bool = False) -> Dropped:
        """See `Admin.drop_topic`."""
        return await self._run(topics.drop_topic(self._prefix, topic, force=force))

    async def policy(self, topic: str) -> Policy:
        """See `Admin.policy`."""
        return (await self._run(require_topic(self._prefix, topic))).policy

    async def set_policy(self, topic: str, **changes: Any) -> Policy:
        """See `Admin.set_policy`."""
        return await self._run(topics.set_policy(self._prefix, topic, changes))

    async def pattern_policies(self) -> list[PatternPolicy]:
        """See `Admin.pattern_policies`."""
        return await self._run(patterns.list_patterns(self._prefix))

    async def set_pattern_policy(
        self, pattern: str, fields: Mapping[str, Any], *, priority: int | None = None, cap: bool = False
    ) -> PatternChange:
        """See `Admin.set_pattern_policy`."""
        return await self._run(patterns.set_pattern(self._prefix, pattern, fields, priority=priority, cap=cap))

    async def drop_pattern_policy(self, pattern: str, *, cap: bool = False) -> PatternChange | None:
        """See `Admin.drop_pattern_policy`."""
        return await self._run(patterns.drop_pattern(self._prefix, pattern, cap=cap))

    async def explain_policy(self, topic: str) -> Explained:
        """See `Admin.explain_policy`."""
        return await self._run(patterns.explain(self._prefix, topic))

    async def reshard(self, topic: str, shards: int) -> ReshardResult:
        """See `Admin.reshard`."""
        return await self._run(reshard.reshard(self._prefix, topic, shards))

    async def groups(self, topic: str) -> list[GroupDebt]:
        """See `Admin.groups`."""
        return await self._run(groups.list_groups(self._prefix, topic))

    async def create_group(self, topic: str, group: str) -> None:
        """See `Admin.create_group`."""
        await self._run(groups.create_group(self._prefix, topic, group))

    async def drop_group(self, topic: str, group: str, *, force: bool = False) -> DroppedGroup:
        """See `Admin.drop_group`."""
        return await self._run(groups.drop_group(self._prefix, topic, group, force=force))

    async def check(
        self, topic: str | None = None, *, repair: bool = False, on_progress: OnProgress | None = None
    ) -> CheckReport:
        """See `Admin.check`."""
        return await self._run(check.check_topics(self._prefix, topic, mend=repair, on_progress=on_progress))

    async def events(self) -> AsyncGenerator[dict[str, TopicEvents]]:
        """The events that managers publish, by topic: about once a second, if anything happened.

        Raises when the subscription breaks.
        """
        async with aclosing(self._connection.listen(events_channel(self._prefix))) as messages:
            async for message in messages:
                if message is not None and (events := read_events(message)):
                    yield events

    async def list_schedules(self, topic: str | None = None) -> list[ScheduleState]:
        """See `Admin.list_schedules`."""
        return await self._run(schedules.list_schedules(self._topics, topic))

    async def schedule(self, topic: str, name: str) -> ScheduleState:
        """See `Admin.schedule`."""
        return await self._run(schedules.read_schedule(self._topics, topic, name))

    async def set_schedule(self, topic: str, name: str, **fields: Any) -> bool:
        """See `Admin.set_schedule`."""
        flow = schedule_changes.set_schedule(self._topics, topic, name, fields)
        return (await self._run(flow)).changed

    async def pause_schedule(self, topic: str, name: str) -> bool:
        """See `Admin.pause_schedule`."""
        flow = schedule_changes.set_paused(self._topics, topic, name, paused=True)
        return (await self._run(flow)).changed

    async def resume_schedule(self, topic: str, name: str) -> bool:
        """See `Admin.resume_schedule`."""
        flow = schedule_changes.set_paused(self._topics, topic, name, paused=False)
        return (await self._run(flow)).changed

    async def run_now(self, topic: str, name: str) -> str:
        """See `Admin.run_now`."""
        return await self._run(schedule_sends.run_now(self._topics, topic, name))

    async def skip_tick(self, topic: str, name: str) -> int | None:
        """See `Admin.skip_tick`."""
        return await self._run(schedule_changes.skip_tick(self._topics, topic, name))

    async def backfill(self, topic: str, name: str, start: datetime, end: datetime) -> Backfilled:
        """See `Admin.backfill`."""
        return await self._run(schedule_sends.backfill(self._topics, topic, name, start, end))

    async def delete_schedule(self, topic: str, name: str) -> None:
        """See `Admin.delete_schedule`."""
        await self._run(schedule_changes.delete_schedule(self._topics, topic, name))

    async def import_schedules(
        self, schedules: Mapping[str, Mapping[str, Mapping[str, Any]]], *, prune: Sequence[str] = ()
    ) -> ImportedSchedules:
        """See `Admin.import_schedules`."""
        return await self._run(schedule_changes.import_schedules(self._topics, schedules, prune=prune))

    async def wait_for_server(
        self,
        stopping: asyncio.Event,
        *,
        patience_s: float = math.inf,
        explain: Callable[[str], object] = lambda _: None,
    ) -> bool:
        """Waits up to `patience_s` seconds until the server answers. Returns False if `stopping` was set before.

        `explain` is called with each error that it waits out. Raises the last one in the end, and at once an error that
        waiting does not correct, such as a wrong password.
        """
        return await wait_for_server(
            lambda: self._connection.call(PING), patience_s=patience_s, stopping=stopping, explain=explain
        )

    async def doctor(self) -> Health:
        """See `Admin.doctor`."""
        try:
            health = await examine(self._connection)
        except AccessDenied as error:
            health = Health([f"the server cannot be checked: {error}"])
        try:
            roles = await judge_roles(self._connection, self._prefix)
        except LisaError as error:
            roles = [f"what users may do cannot be checked: {error}"]
        findings, hints = list[str](), list[str]()
        # A user may know one of them only, and of a Cluster a node may be away.
        with suppress(LisaError):
            hints = list(filter(None, [await self.missing_manager()]))
            if await self.topics():
                findings, hints = hints, []
        return replace(health, findings=[*health.findings, *findings], roles=roles, hints=hints)

    async def missing_manager(self) -> str:
        """See `Admin.missing_manager`."""
        return await self._run(find_absence(self._prefix))

    async def server_time(self) -> datetime:
        """See `Admin.server_time`."""
        return await self._run(read_time())

    async def server_facts(self) -> ServerFacts:
        """See `Admin.server_facts`."""
        return await read_facts(self._connection, self._prefix)

    async def server_version(self) -> tuple[int, ...]:
        """See `Admin.server_version`."""
        return await read_version(self._connection)

    async def load_scripts(self) -> int:
        """See `Admin.load_scripts`."""
        return await loader.load_scripts(self._connection)

    async def close(self) -> None:
        """Closes the connections; later calls raise Closed."""
        await self._connection.close()

    @property
    def _topics(self) -> Topics:
        # Made for each call: a cached topic may have been dropped since.
        return Topics(self._prefix)

    async def _run(self, flow: Flow[T]) -> T:
        return await self._connection.run(flow, patience_s=self._patience_s)
