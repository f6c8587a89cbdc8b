"""The schedules of `AsyncAdmin`."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from lisa_common.protocol.call import Flow
from lisa_common.protocol.registry import Topics
from lisa_manager.admin import schedule_changes, schedule_sends, schedules
from lisa_manager.admin.schedule_changes import ImportedSchedules
from lisa_manager.admin.schedule_sends import Backfilled
from lisa_manager.admin.schedules import ScheduleState

__all__ = ["AsyncScheduleAdmin"]

T = TypeVar("T")


class AsyncScheduleAdmin:
    """What operators do with schedules. A topic has schedules of its own; their names are like those of topics."""

    _prefix: str

    @property
    def _topics(self) -> Topics:
        # Made for each call: a cached topic may have been dropped since.
        return Topics(self._prefix)

    @abstractmethod
    async def _run(self, flow: Flow[T]) -> T: ...

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
