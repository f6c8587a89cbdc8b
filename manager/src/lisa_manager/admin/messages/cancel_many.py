"""Cancelling the waiting messages of a topic that a filter selects, in bounded steps."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from lisa_common.errors import InvalidInput
from lisa_common.model.keys import ShardKeys
from lisa_common.model.scores import PARKED_MS
from lisa_common.model.sharding import Layout
from lisa_common.protocol import paging, producing
from lisa_common.protocol.call import Flow, command
from lisa_common.protocol.consuming import server_time
from lisa_common.protocol.paging import END, START, Listed, Page, Point
from lisa_common.protocol.producing import CancelOutcome, State
from lisa_common.validation import MAX_ID_BYTES, check_bool, check_callable, headers_json, is_id, moment_ms
from lisa_manager.admin.garbage.bulk import BulkResult, OnProgress, StopBulk
from lisa_manager.queries import require_topic

__all__ = ["ALL_WAITING", "WaitingFilter", "cancel_many"]

_AT_ONCE: Final = 200


@dataclass(frozen=True, slots=True)
class WaitingFilter:
    """Selects waiting messages by the fields that are set; raises InvalidInput for a value that none can have."""

    id_prefix: str | None = None
    """Only messages whose ids begin so."""
    headers: Mapping[str, str] | None = None
    """Only messages that have all these headers, among others."""
    due_before: datetime | None = None
    """Only messages that are due before this time, an aware datetime."""
    as_of: datetime | None = None
    """Only messages that were sent before this moment; None for the time of the call."""

    def __post_init__(self) -> None:
        headers_json(self.headers)
        if self.id_prefix is not None and not is_id(self.id_prefix):
            raise InvalidInput("id_prefix", self.id_prefix, f"1 to {MAX_ID_BYTES} bytes of printable text")
        if self.due_before is not None:
            moment_ms("due_before", self.due_before)
        if self.as_of is not None:
            moment_ms("as_of", self.as_of)

    def spans(self) -> tuple[tuple[Point, Point], ...]:
        """The parts of the waiting set that may hold selected messages."""
        if self.due_before is None:
            return ((START, END),)
        due_ms = moment_ms("due_before", self.due_before)
        return (START, Point(due_ms)), (Point(PARKED_MS), Point(PARKED_MS + due_ms))

    def matches(self, message: Listed) -> bool:
        """Whether it selects a message of these spans."""
        if self.due_before is not None and message.at_ms >= moment_ms("due_before", self.due_before):
            return False
        if self.headers and not (message.record and self.headers.items() <= message.record.headers.items()):
            return False
        return message.id.startswith(self.id_prefix or "")


ALL_WAITING = WaitingFilter()


def cancel_many(
    prefix: str, topic: str, where: WaitingFilter, *, dry_run: bool, on_progress: OnProgress | None
) -> Flow[BulkResult]:
    """Cancels selected waiting messages, those that are due first before others; leaves out those sent meanwhile."""
    if not isinstance(where, WaitingFilter):
        raise InvalidInput("where", where, "a WaitingFilter")
    check_bool("dry_run", dry_run)
    check_callable("on_progress", on_progress)
    layout = yield from require_topic(prefix, topic)
    before_ms: int = (yield server_time()) + 1 if where.as_of is None else moment_ms("as_of", where.as_of)
    total, looked = (yield from _count(layout, where)), 0
    outcomes = Counter[CancelOutcome]()
    stopped = False
    for keys, start, end in _parts(layout, where):
        rest: Point | None = start
        while rest is not None and not stopped:
            page: Page = yield paging.list_messages(keys, State.WAITING, rest, end, limit=_AT_ONCE, bodies=False)
            ids = [each.id for each in page.messages if where.matches(each) and _is_known(each, before_ms)]
            if ids:
                outcomes.update(
                    [CancelOutcome.CANCELLED] * len(ids) if dry_run else (yield producing.cancel(keys, ids))
                )
            rest, looked = page.rest, looked + len(page.messages)
            try:
                if on_progress is not None:
                    on_progress(looked, max(total, looked))
            except StopBulk:
                stopped = True
    done = outcomes.pop(CancelOutcome.CANCELLED, 0)
    return BulkResult(done, {str(name): number for name, number in sorted(outcomes.items())}, stopped)


def _parts(layout: Layout, where: WaitingFilter) -> Iterator[tuple[ShardKeys, Point, Point]]:
    return ((keys, start, end) for keys in layout.served for start, end in where.spans())


def _count(layout: Layout, where: WaitingFilter) -> Flow[int]:
    counts: list[int] = yield [
        command("ZCOUNT", keys.of("waiting"), repr(start.score), repr(end.score))
        for keys, start, end in _parts(layout, where)
    ]
    return sum(counts)


def _is_known(message: Listed, before_ms: int) -> bool:
    # Other programs may have written an id that no call takes.
    return is_id(message.id) and (message.record is None or message.record.sent_ms < before_ms)
