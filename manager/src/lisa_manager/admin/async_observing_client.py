"""The history and the activity of `AsyncAdmin`: what people look at, beside sizes and messages."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import TypeVar

from lisa_common.model.worker_state import Wish, WorkerState
from lisa_common.protocol.call import Flow
from lisa_manager.admin import activity, consumers, due_counts, history, memory, operations, workers
from lisa_manager.admin.activity import Activity
from lisa_manager.admin.consumers import ConsumerStatus
from lisa_manager.admin.due_counts import DueCounts
from lisa_manager.admin.history import Sample
from lisa_manager.admin.operations import Operation

__all__ = ["AsyncObservingAdmin"]

T = TypeVar("T")


class AsyncObservingAdmin:
    """What operators read and note beside messages."""

    _prefix: str

    @abstractmethod
    async def _run(self, flow: Flow[T]) -> T: ...

    async def history(
        self, topics: Sequence[str], *, hours: float = 24.0, until_ms: int | None = None
    ) -> dict[str, list[Sample]]:
        """See `Admin.history`."""
        return await self._run(history.read_history(self._prefix, topics, hours, until_ms))

    async def due_counts(self, topic: str, *, start_ms: int | None = None, end_ms: int | None = None) -> DueCounts:
        """See `Admin.due_counts`."""
        return await self._run(due_counts.read_due_counts(self._prefix, topic, start_ms, end_ms))

    async def memory(self, topics: Sequence[str]) -> dict[str, int]:
        """See `Admin.memory`."""
        return await self._run(memory.read_memory(self._prefix, topics))

    async def consumers(self, topic: str) -> list[ConsumerStatus]:
        """See `Admin.consumers`."""
        return await self._run(consumers.list_consumers(self._prefix, topic))

    async def workers(self, *, topic: str | None = None, group: str | None = None) -> list[WorkerState]:
        """See `Admin.workers`."""
        return await self._run(workers.list_workers(self._prefix, topic, group))

    async def worker(self, name: str, *, group: str | None = None) -> WorkerState:
        """See `Admin.worker`."""
        return await self._run(workers.find_worker(self._prefix, name, group))

    async def pause_worker(self, name: str, *, group: str | None = None) -> WorkerState:
        """See `Admin.pause_worker`."""
        return await self._run(workers.ask(self._prefix, name, group, Wish.PAUSE))

    async def resume_worker(self, name: str, *, group: str | None = None) -> bool:
        """See `Admin.resume_worker`."""
        return await self._run(workers.resume(self._prefix, name, group))

    async def drain_worker(self, name: str, *, group: str | None = None) -> WorkerState:
        """See `Admin.drain_worker`."""
        return await self._run(workers.ask(self._prefix, name, group, Wish.DRAIN))

    async def note_activity(self, done: Activity) -> None:
        """See `Admin.note_activity`."""
        await self._run(activity.note(self._prefix, done))

    async def activity(self, *, limit: int = 100, before: str | None = None) -> list[Activity]:
        """See `Admin.activity`."""
        return await self._run(activity.read(self._prefix, limit, before))

    async def operations(self) -> list[Operation]:
        """See `Admin.operations`."""
        return await self._run(operations.read(self._prefix))

    async def save_operation(self, operation: Operation) -> bool:
        """See `Admin.save_operation`."""
        return await self._run(operations.save(self._prefix, operation))

    async def stop_operation(self, id: str) -> bool:
        """See `Admin.stop_operation`."""
        return await self._run(operations.stop(self._prefix, id))
