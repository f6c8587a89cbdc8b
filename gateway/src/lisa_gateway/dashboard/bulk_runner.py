"""Operations over many messages: they run in this process in bounded steps, and any gateway shows and stops them."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from lisa_common.errors import LisaError
from lisa_common.logs import event
from lisa_gateway.dashboard.selection import Selection
from lisa_gateway.gateway import Gateway
from lisa_manager import (
    Activity,
    AsyncAdmin,
    CancelOutcome,
    GarbageFilter,
    ListedMessage,
    Operation,
    RescheduleOutcome,
    StopBulk,
    new_operation_id,
)

__all__ = ["VERBS", "BulkRunner", "change"]

logger = logging.getLogger(__name__)

_REPORT_S = 0.5
_MOST_RUNNING = 4
"""Operations that one process runs at once; further ones wait."""

_PAGE = 200
_PAUSE_S = 0.005
"""A rest after each step, so that other clients of the server come first."""

VERBS = {
    "replay": ("garbage",),
    "purge": ("garbage",),
    "cancel": ("waiting", "ready", "retry"),
    "due-now": ("waiting", "retry"),
    "reschedule": ("waiting", "retry"),
}
"""What can be done to many messages, and in which states."""


class BulkRunner:
    """Runs operations, and stores their progress."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(_MOST_RUNNING)
        gateway.on_close.append(self.close)

    async def start(self, who: str, what: str, selection: Selection, total: int) -> str:
        """Begins an operation. Returns its id. Raises LisaError if it cannot be stored."""
        as_of = selection.as_of or await self._gateway.admin.server_time()
        # Stored with the rest, so that what is resumed later means the same messages.
        selection = replace(selection, as_of=as_of)
        operation = Operation(new_operation_id(), who, what, selection.topic, selection.text, total)
        await self._gateway.admin.save_operation(operation)
        task = asyncio.create_task(_Run(self._gateway.admin, operation, selection).run(self._slots))
        self._tasks[operation.id] = task
        task.add_done_callback(lambda _: self._tasks.pop(operation.id, None))
        return operation.id

    async def close(self) -> None:
        """Stops all operations after their present steps; what they have done stays done."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)


class _Run:
    """One operation."""

    def __init__(self, admin: AsyncAdmin, operation: Operation, selection: Selection) -> None:
        self._admin = admin
        self._operation = operation
        self._selection = selection
        self._stopping = False

    async def run(self, slots: asyncio.Semaphore) -> None:
        """Runs to its end, its stop or its failure."""
        reporter = asyncio.create_task(self._report())
        error = ""
        try:
            async with slots:
                status = "done" if await self._work() else "stopped"
        except LisaError as failure:
            status, error = "failed", str(failure)
        except asyncio.CancelledError:
            status, error = "stopped", "its gateway ended"
        except Exception as failure:
            logger.exception("an operation failed", extra=event("operation_failed", operation=self._operation.id))
            status, error = "failed", f"{type(failure).__name__}: see the log of the gateway"
        finally:
            reporter.cancel()
            await asyncio.gather(reporter, return_exceptions=True)
        await self._end(status, error)

    async def _end(self, status: str, error: str) -> None:
        of = self._operation = replace(self._operation, status=status, error=error)
        detail = f"{self._selection.text} ({status})"
        try:
            await self._admin.save_operation(of)
            await self._admin.note_activity(Activity(of.who, f"{of.what} all", of.topic, of.done, detail))
        except LisaError as failure:
            # Others see it as interrupted.
            fields = event("operation_unsaved", operation=of.id, done=of.done, error=str(failure))
            logger.error("the end of %s %s cannot be stored: %s", of.what, of.id, failure, extra=fields)

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(_REPORT_S)
            try:
                self._stopping = await self._admin.save_operation(self._operation) or self._stopping
            except LisaError as error:
                fields = event("operation_unsaved", operation=self._operation.id, error=str(error))
                logger.debug("progress cannot be stored: %s", error, extra=fields)

    async def _work(self) -> bool:
        """Whether it came to its end; otherwise it was stopped."""
        what, selection = self._operation.what, self._selection
        if what in ("replay", "purge") and not selection.needs_look:
            return await self._work_on_garbage(what)
        cursor: str | None = None
        while not self._stopping:
            page = await self._admin.messages(
                selection.topic, selection.state, group=selection.group, limit=_PAGE, cursor=cursor
            )
            chosen = [m for m in page.messages if selection.matches(m) and not self._is_moved(m)]
            copies = [(message.group or "", message.id) for message in chosen]
            at = selection.target if what == "reschedule" else None
            done, failed = await change(self._admin, selection.topic, copies, what, at=at) if copies else (0, 0)
            of = self._operation
            self._operation = replace(
                of, looked=of.looked + len(page.messages), done=of.done + done, failed=of.failed + failed
            )
            cursor = page.cursor
            if cursor is None:
                return True
            await asyncio.sleep(_PAUSE_S)
        return False

    def _is_moved(self, message: ListedMessage) -> bool:
        """Returns True if this operation has moved the message. It may be on a later page, again and again."""
        target = self._selection.target_ms
        return target is not None and message.at_ms == target

    async def _work_on_garbage(self, what: str) -> bool:
        def report(looked: int, total: int) -> None:
            # Until the result tells which of them were left: it may never come.
            self._operation = replace(self._operation, looked=looked, done=looked, total=total)
            if self._stopping and looked < total:
                raise StopBulk

        call = self._admin.replay_all if what == "replay" else self._admin.purge_all
        result = await call(self._selection.topic, self._selection.garbage_filter, on_progress=report)
        failed = sum(result.failed.values())
        self._operation = replace(self._operation, done=result.done, failed=failed)
        return not result.stopped


async def change(
    admin: AsyncAdmin, topic: str, copies: Sequence[tuple[str, str]], what: str, *, at: datetime | None = None
) -> tuple[int, int]:
    """Does one of `VERBS` to messages, given as group and id of their copies; of dead letters, only to these copies.

    Returns how many it changed, and how many it did not.
    """
    if what in ("replay", "purge"):
        call, by_group = admin.replay if what == "replay" else admin.purge, defaultdict[str, list[str]](list)
        for group, id in copies:
            by_group[group].append(id)
        results = [await call(topic, ids, GarbageFilter(group)) for group, ids in by_group.items()]
        return sum(result.done for result in results), sum(sum(result.failed.values()) for result in results)
    # Each group may have a copy of the same message.
    ids = list(dict.fromkeys(id for _, id in copies))
    if what == "cancel":
        ends = (CancelOutcome.CANCELLED, CancelOutcome.DELIVERED)
        done = sum(outcome in ends for outcome in (await admin.cancel(topic, ids)).values())
    else:
        outcomes = (await admin.reschedule(topic, ids, at=at)).values()
        done = sum(outcome is RescheduleOutcome.RESCHEDULED for outcome in outcomes)
    return done, len(ids) - done
