"""The schedules of `AsyncAdmin`."""

from abc import abstractmethod
from collections.abc import Mapping
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
    """What operators do with schedules. Names and topics of schedules are like those of topics."""

    _prefix: str

    @property
    def _place(self) -> tuple[str, Topics]:
        # Topics anew for each call: a cached one may have been dropped since.
        return self._prefix, Topics(self._prefix)

    @abstractmethod
    async def _run(self, flow: Flow[T]) -> T: ...

    async def list_schedules(self, topic: str | None = None) -> list[ScheduleState]:
        """See `Admin.list_schedules`."""
        return await self._run(schedules.list_schedules(*self._place, topic))

    async def schedule(self, name: str) -> ScheduleState:
        """See `Admin.schedule`."""
        return await self._run(schedules.read_schedule(*self._place, name))

    async def set_schedule(self, name: str, **fields: Any) -> bool:
        """See `Admin.set_schedule`."""
        flow = schedule_changes.set_schedule(*self._place, name, fields)
        return (await self._run(flow)).changed

    async def pause_schedule(self, name: str) -> bool:
        """See `Admin.pause_schedule`."""
        flow = schedule_changes.set_paused(*self._place, name, paused=True)
        return (await self._run(flow)).changed

    async def resume_schedule(self, name: str) -> bool:
        """See `Admin.resume_schedule`."""
        flow = schedule_changes.set_paused(*self._place, name, paused=False)
        return (await self._run(flow)).changed

    async def run_now(self, name: str) -> str:
        """See `Admin.run_now`."""
        return await self._run(schedule_sends.run_now(*self._place, name))

    async def skip_tick(self, name: str) -> int | None:
        """See `Admin.skip_tick`."""
        return await self._run(schedule_changes.skip_tick(*self._place, name))

    async def backfill(self, name: str, start: datetime, end: datetime) -> Backfilled:
        """See `Admin.backfill`."""
        return await self._run(schedule_sends.backfill(*self._place, name, start, end))

    async def delete_schedule(self, name: str) -> None:
        """See `Admin.delete_schedule`."""
        await self._run(schedule_changes.delete_schedule(*self._place, name))

    async def import_schedules(
        self, schedules: Mapping[str, Mapping[str, Any]], *, prune: bool = False
    ) -> ImportedSchedules:
        """See `Admin.import_schedules`."""
        return await self._run(schedule_changes.import_schedules(*self._place, schedules, prune=prune))
