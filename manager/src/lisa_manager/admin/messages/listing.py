"""Messages of one state, page by page, with their records and failures.

Waiting, retry and garbage are sets in the order of time. Ready messages are the entries of the stream that a group has
not read, and delivered ones its pending entries. Messages may come and go meanwhile: each one that stays in its place
is listed exactly once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lisa_common.errors import InvalidInput
from lisa_common.model.delivery import Entry, entry_of, entry_place
from lisa_common.model.failure import Failure, read_failure
from lisa_common.model.keys import ShardKeys, bytes_of, copy_of
from lisa_common.model.record import Record, read_head, read_record
from lisa_common.protocol import paging
from lisa_common.protocol.call import Call, Flow, command
from lisa_common.protocol.fetching import fetch_within
from lisa_common.protocol.paging import PAGED, Page
from lisa_common.protocol.producing import State
from lisa_common.protocol.replies import byte_values
from lisa_common.validation import check_bool, check_int, check_name
from lisa_manager.admin.groups.debts import require_group
from lisa_manager.admin.messages.page_order import PageSegment, Place, read_cursor, remaining, segments_of, write_cursor
from lisa_manager.queries import entries, pending, require_topic

__all__ = ["ListedMessage", "MessagePage", "list_messages"]

_LISTED = (*PAGED[:1], State.READY, State.DELIVERED, *PAGED[1:])
_MOST = 1_000
_MOST_BYTES = 2 * 1024 * 1024
"""Bodies in one page; the first message is part of it however large it is."""
_MOST_READS = 100
"""Reads for one page: a page of few matches, or of many empty shards, ends early."""


@dataclass(frozen=True, slots=True)
class ListedMessage:
    """A message of one state, or a group's copy of it. Times are ms of the server's clock."""

    id: str
    state: State
    group: str | None
    """None for a waiting message, and for one that no group has."""
    at_ms: int
    """When it is or was due; of garbage, when it died."""
    record: Record | None = None
    """Body, headers and limits. None where the record is gone, cancelled or unreadable."""
    failure: Failure | None = None
    """The last failure of this copy."""
    consumer: str | None = None
    """The consumer that holds a delivered message."""
    idle_ms: int | None = None
    """How long ago its lease began or was renewed, in ms."""
    unreadable: str = ""
    """What is wrong with the record."""

    @property
    def attempts(self) -> int:
        """Deliveries that have begun: failed ones and the current one."""
        failed = self.failure.attempts if self.failure else 0
        return failed + (self.state is State.DELIVERED)


@dataclass(frozen=True, slots=True)
class MessagePage:
    """Some messages of a state. A page may hold fewer than its limit, or none, and not be the last."""

    messages: tuple[ListedMessage, ...]
    cursor: str | None
    """Continues the list; None at its end. It holds printable characters that URLs allow."""


def list_messages(
    prefix: str,
    topic: str,
    state: State,
    *,
    group: str | None,
    limit: int,
    cursor: str | None,
    newest_first: bool = False,
) -> Flow[MessagePage]:
    """The messages of a state from a cursor on; raises UnknownTopic, UnknownGroup and InvalidInput."""
    if state not in _LISTED:
        raise InvalidInput("state", str(state), f"one of {', '.join(_LISTED)}")
    # A gateway may pass its name.
    state = State(state)
    if check_bool("newest_first", newest_first) and state is not State.GARBAGE:
        raise InvalidInput("newest_first", newest_first, f"False for {state} messages")
    budget = _Budget(check_int("limit", limit, 1, _MOST), newest_first=newest_first)
    _check_group(group, state)
    if cursor is not None:
        # A wrong cursor is refused before the server is asked.
        read_cursor(cursor, state)
    layout = yield from require_topic(prefix, topic)
    segments = yield from segments_of(layout, state, group)
    messages: list[ListedMessage] = []
    for segment, start in remaining(segments, cursor, state):
        position: Place | None = start
        while position is not None:
            if budget.is_spent:
                return MessagePage(tuple(messages), write_cursor(state, segment, position))
            listed, position = yield from _read_segment(segment, state, position, budget, group or "")
            budget.spend(listed)
            # The server selects by group, except those of none.
            selected = [message for message in listed if group != "" or not message.group]
            budget.messages -= len(selected)
            messages += selected
    if not messages:
        yield from require_group(layout, group)
    return MessagePage(tuple(messages), None)


def _check_group(group: str | None, state: State) -> None:
    if group:
        check_name("group", group)
    if group is not None and state is State.WAITING:
        raise InvalidInput("group", group, "None for waiting messages, which no group has yet")


@dataclass(slots=True)
class _Budget:
    """What is left for one page."""

    messages: int
    newest_first: bool
    """In which order to read."""
    bytes: int = _MOST_BYTES
    reads: int = field(default=_MOST_READS)

    @property
    def is_spent(self) -> bool:
        """Whether the page is complete."""
        return self.messages <= 0 or self.bytes <= 0 or self.reads <= 0

    def spend(self, listed: Sequence[ListedMessage]) -> None:
        """Counts a read."""
        self.reads -= 1
        self.bytes -= sum(len(message.record.body) for message in listed if message.record)


_Read = Flow[tuple[list[ListedMessage], Place | None]]


def _read_segment(segment: PageSegment, state: State, place: Place, budget: _Budget, group: str) -> _Read:
    """The next messages of a segment, and where it continues: None at its end. Of a group, if there is one."""
    if state is State.READY:
        return (yield from _read_ready(segment, place, budget))
    if state is State.DELIVERED and segment.group:
        return (yield from _read_delivered(segment.keys, segment.group.name, place, budget))
    start, end = segment.start(place), segment.span[1]
    if budget.newest_first:
        start, end = start if place else end, segment.span[0]
    read: Page = yield paging.list_messages(
        *(segment.keys, state, start, end),
        limit=budget.messages,
        max_bytes=budget.bytes,
        group=group,
        newest_first=budget.newest_first,
    )
    listed = [
        ListedMessage(m.id, m.state, m.group, m.at_ms, m.record, m.failure, unreadable=m.unreadable)
        for m in read.messages
    ]
    return listed, None if read.rest is None else segment.place(read.rest)


# Ready and delivered


class _Pending(NamedTuple):
    """An entry that a consumer may hold."""

    entry: Entry
    consumer: str | None = None
    idle_ms: int | None = None


def _read_ready(segment: PageSegment, place: Place, budget: _Budget) -> _Read:
    # The group may have read on since the cursor was made.
    last = max([*place, segment.group.last if segment.group else "0-0"], key=entry_place)
    stream: list[Entry] = yield entries(segment.keys, f"({last}", count=budget.messages)
    group = segment.group.name if segment.group else None
    # Each retry is for one group; an entry without an id is from another program.
    own = [_Pending(entry) for entry in stream if entry.id and (group is None or entry.group in {None, group})]
    rest = [stream[-1].entry] if len(stream) == budget.messages else None
    return (yield from _with_records(segment.keys, State.READY, group, own, budget, rest=rest))


def _read_delivered(keys: ShardKeys, group: str, place: Place, budget: _Budget) -> _Read:
    rows: list[Any] = yield pending(keys, group, f"({place[0]}" if place else "-", count=budget.messages)
    if not rows:
        return [], None
    stream: list[Entry] = yield [_entry(keys, row[0]) for row in rows]
    held = [_Pending(e, row[1].decode("utf-8", "replace"), row[2]) for e, row in zip(stream, rows, strict=True) if e.id]
    rest = [rows[-1][0].decode()] if len(rows) == budget.messages else None
    return (yield from _with_records(keys, State.DELIVERED, group, held, budget, rest=rest))


def _entry(keys: ShardKeys, name: bytes) -> Call[Entry]:
    def decode(reply: list[Any]) -> Entry:
        return entry_of(name, reply[0][1] if reply else None)

    return command("XRANGE", keys.of("ready"), name, name, decode=decode)


def _with_records(
    keys: ShardKeys, state: State, group: str | None, items: Sequence[_Pending], budget: _Budget, *, rest: Place | None
) -> _Read:
    """The messages of entries, as many as the budget allows, and where the list continues: at `rest` behind all."""
    if not items:
        return [], rest
    ids = [item.entry.id or "" for item in items]
    copies = [bytes_of(copy_of(group or "", id)) for id in ids]
    records, failures = yield [
        fetch_within(keys, ids, most_bytes=max(1, budget.bytes), least=1),
        command("HMGET", keys.of("failures"), *copies, decode=lambda reply: byte_values(reply, len(copies))),
    ]
    if isinstance(records, str):
        return [_listed(state, group, item, unreadable=records) for item in items], rest
    listed = []
    for item, data, failure in zip(items, records, failures, strict=False):
        head = read_head(data) if data is not None else None
        is_current = head is not None and head.is_of(item.entry.due_ms) and not head.cancelled
        if not is_current and state is State.READY:
            # Cancelled, or left over from an earlier message of the same id: consumers skip it.
            continue
        record, unreadable = read_record(data if is_current else None)
        listed.append(_listed(state, group, item, record=record, failure=read_failure(failure), unreadable=unreadable))
    return listed, [items[len(records) - 1].entry.entry] if len(records) < len(items) else rest


def _listed(state: State, group: str | None, item: _Pending, **details: Any) -> ListedMessage:
    entry, consumer, idle_ms = item
    at_ms = entry.at_ms or entry.due_ms
    return ListedMessage(entry.id or "", state, group, at_ms, consumer=consumer, idle_ms=idle_ms, **details)
