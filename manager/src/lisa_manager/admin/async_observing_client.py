"""The history and the activity of `AsyncAdmin`: what people look at, beside sizes and messages."""

from collections.abc import Sequence

from lisa_common.model.worker_state import Wish, WorkerState
from lisa_manager.admin import activity, operations, workers
from lisa_manager.admin.activity import Activity
from lisa_manager.admin.async_server_client import AsyncServerAdmin
from lisa_manager.admin.groups import consumers
from lisa_manager.admin.groups.consumers import ConsumerStatus
from lisa_manager.admin.operations import Operation
from lisa_manager.admin.topics import due_counts, history, memory
from lisa_manager.admin.topics.due_counts import DueCounts
from lisa_manager.admin.topics.history import Sample

__all__ = ["AsyncObservingAdmin"]


class AsyncObservingAdmin(AsyncServerAdmin):
    """What operators read and note beside messages."""

    async def history(
        self, topics: Sequence[str], *, hours: float = 24.0, until_ms: int | None = None
    ) -> dict[str, list[Sample]]:
        """The samples of topics that managers wrote in so many hours, up to 744, oldest first, by topic.

        The hours end now, or at `until_ms` since 1970. Managers write one sample a minute unless settings say
        otherwise; an unchanged topic gets fewer.
        """
        return await self._run(history.read_history(self._prefix, topics, hours, until_ms))

    async def due_counts(self, topic: str, *, start_ms: int | None = None, end_ms: int | None = None) -> DueCounts:
        """How many waiting messages fall due in each part of a time, in ms since 1970. Raises UnknownTopic.

        By default from the first that is due to the last. The server counts them, at most 4,000 times, or 8 times for
        each shard; so it takes milliseconds, however many wait.
        """
        return await self._run(due_counts.read_due_counts(self._prefix, topic, start_ms, end_ms))

    async def memory(self, topics: Sequence[str]) -> dict[str, int]:
        """The memory of topics in bytes, as the server samples it, without topics that do not exist.

        Raises LisaError; some rented servers refuse MEMORY USAGE.
        """
        return await self._run(memory.read_memory(self._prefix, topics))

    async def consumers(self, topic: str) -> list[ConsumerStatus]:
        """The consumers of a topic's groups: what they hold, and how long they have been idle. Raises UnknownTopic."""
        return await self._run(consumers.list_consumers(self._prefix, topic))

    async def workers(self, *, topic: str | None = None, group: str | None = None) -> list[WorkerState]:
        """The workers that live, of one group or that read a topic, by group and name, with what each does.

        A worker says so within a second when it pauses, drains or gets stuck, or when a handler has run for a second;
        else every five seconds. It is `silent` after 15 s without news, and forgotten after an hour.
        """
        return await self._run(workers.list_workers(self._prefix, topic, group))

    async def worker(self, name: str, *, group: str | None = None) -> WorkerState:
        """One worker. Raises UnknownWorker, and InvalidInput where workers of several groups have the name."""
        return await self._run(workers.find_worker(self._prefix, name, group))

    async def pause_worker(self, name: str, *, group: str | None = None) -> WorkerState:
        """Pauses a worker: within about a second it begins nothing more, and gives back what it has not begun.

        Handlers that run go on. The pause lasts until `resume_worker`; where the worker's code chose its name, also for
        its successors. Returns what the worker said last. Raises as `worker`.
        """
        return await self._run(workers.ask(self._prefix, name, group, Wish.PAUSE))

    async def resume_worker(self, name: str, *, group: str | None = None) -> bool:
        """Ends a pause by `pause_worker`, also of a worker that does not run. Returns whether there was one.

        Raises as `worker`.
        """
        return await self._run(workers.resume(self._prefix, name, group))

    async def drain_worker(self, name: str, *, group: str | None = None) -> WorkerState:
        """Makes a worker drain and end, as SIGTERM does. What supervises it may start another.

        A pause of its name lasts. Raises as `worker`.
        """
        return await self._run(workers.ask(self._prefix, name, group, Wish.DRAIN))

    async def note_activity(self, done: Activity) -> None:
        """Adds an action to the list that `activity` returns. The latest 10,000 or so are kept."""
        await self._run(activity.note(self._prefix, done))

    async def activity(self, *, limit: int = 100, before: str | None = None) -> list[Activity]:
        """The latest noted actions, newest first, up to `limit` (1 to 1,000); `before` is the `entry` of one."""
        return await self._run(activity.read(self._prefix, limit, before))

    async def operations(self) -> list[Operation]:
        """The latest operations over many messages, newest first, with their progress."""
        return await self._run(operations.read(self._prefix))

    async def save_operation(self, operation: Operation) -> bool:
        """Stores the progress of an operation. Returns whether somebody asked for its end. 100 are kept."""
        return await self._run(operations.save(self._prefix, operation))

    async def stop_operation(self, id: str) -> bool:
        """Asks for the end of a running operation, which ends after its present step. Returns whether it runs."""
        return await self._run(operations.stop(self._prefix, id))
