"""Ready and delivered messages of a shard, page by page: entries that a group has not read, or not settled.

An entry that moves meanwhile may be listed in both states, or in neither.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from lisa_common.errors import LisaError
from lisa_common.model.delivery import Entry, entry_of, entry_place
from lisa_common.model.keys import ShardKeys
from lisa_common.model.record import Record, UnreadableRecord, is_cancelled, unpack_record
from lisa_common.protocol.call import Flow, command
from lisa_common.protocol.fetching import fetch_within
from lisa_common.protocol.producing import State
from lisa_common.protocol.replies import rows
from lisa_producer.spark.pending_entries import FIRST, read_infos
from lisa_producer.spark.rows import MessageRow, columns_of

__all__ = ["EntrySpan", "GroupEntries", "list_entries", "read_groups", "split_entries"]

_ENTRIES = 1_000
_DENSE = 2
"""Entries in the reply that is to have all of a page of pending ones, for each of these."""
_MAX_BYTES = 2 * 1024 * 1024


class EntrySpan(NamedTuple):
    """The entries of a state after one place and up to another, in all shards."""

    state: State
    after: str
    until: str


@dataclass(frozen=True, slots=True)
class GroupEntries:
    """The entries of one group in one shard that are in a state; without groups, all entries are ready."""

    keys: ShardKeys
    state: State
    group: str | None
    after: str
    until: str


def split_entries(shards: Sequence[ShardKeys], state: State, size: int) -> Flow[list[EntrySpan]]:
    """Cuts the entries of shards into spans of about `size`, if as many are added at any time; at least one span."""
    total, times = 0, []
    for keys in shards:
        ready = keys.of("ready")
        count, first, last = yield [
            command("XLEN", ready),
            command("XRANGE", ready, "-", "+", "COUNT", 1),
            command("XREVRANGE", ready, "+", "-", "COUNT", 1),
        ]
        total += count
        times += [int(entry.partition(b"-")[0]) for entry, _ in rows(first) + rows(last)]
    count = -(-total // size) or 1
    begin, length = min(times, default=0), max(times, default=0) - min(times, default=0)
    inner = dict.fromkeys(f"{begin + length * at // count}-0" for at in range(1, count))
    return [EntrySpan(state, *ends) for ends in pairwise((FIRST, *inner, "+"))]


def read_groups(keys: ShardKeys, span: EntrySpan) -> Flow[list[GroupEntries]]:
    """The groups of a shard, with what of a span is in its state."""
    infos = yield from read_infos(keys)
    named = [(info["name"].decode(), info["last-delivered-id"].decode()) for info in infos]
    if span.state is State.DELIVERED:
        return [GroupEntries(keys, span.state, name, span.after, span.until) for name, _ in named]
    return [
        GroupEntries(keys, span.state, name, max(after, span.after, key=entry_place), span.until)
        for name, after in named or [(None, FIRST)]
    ]


def list_entries(topic: str, part: GroupEntries, after: str) -> Flow[tuple[list[MessageRow], str | None]]:
    """The rows of the next entries after one, and the entry at which to continue, None at the end."""
    entries = yield from (_ready(part, after) if part.state is State.READY else _delivered(part, after))
    if not entries:
        return [], None
    named = [entry for entry in entries if entry.id and entry.group in (None, part.group)]
    listed: list[MessageRow] = []
    while named:
        records = yield fetch_within(part.keys, [e.id or "" for e in named], most_bytes=_MAX_BYTES, least=1)
        if isinstance(records, str):
            raise LisaError(f"cannot fetch {len(named)} messages of {part.keys.tag}: {records}")
        for entry, data in zip(named, records, strict=False):
            if data is not None and (row := _row(topic, part, entry, data)):
                listed.append(row)
        named = named[len(records) :]
    return listed, entries[-1].entry


def _ready(part: GroupEntries, after: str) -> Flow[list[Entry]]:
    reply = yield command("XRANGE", part.keys.of("ready"), f"({after}", part.until, "COUNT", _ENTRIES)
    return [entry_of(entry, values) for entry, values in rows(reply)]


def _delivered(part: GroupEntries, after: str) -> Flow[list[Entry]]:
    ready = part.keys.of("ready")
    pending: Any = yield command("XPENDING", ready, part.group or "", f"({after}", part.until, _ENTRIES)
    names: list[bytes] = [row[0] for row in rows(pending)]
    if not names:
        return []
    # Mostly they follow each other. Of those far apart, each is read by itself: there may be any number between them.
    page: Any = yield command("XRANGE", ready, names[0], names[-1], "COUNT", most := _DENSE * len(names))
    found = dict(rows(page))
    missing = [name for name in names if name not in found] if len(found) == most else []
    for reply in (yield [command("XRANGE", ready, name, name) for name in missing]) if missing else ():
        found |= dict(rows(reply))
    return [entry_of(name, found[name]) if name in found else Entry(name.decode()) for name in names]


def _row(topic: str, part: GroupEntries, entry: Entry, data: bytes) -> MessageRow | None:
    """The row of an entry and its record; None if the record was cancelled, or belongs to a later message."""
    record: Record | None = None
    error = None
    try:
        if is_cancelled(data):
            return None
        record = unpack_record(data)
        if record.due_ms != entry.due_ms or entry.made_ms < record.sent_ms:
            return None
    except UnreadableRecord as unreadable:
        error = f"unreadable record: {unreadable}"
    return MessageRow(
        topic=topic,
        state=part.state.value,
        group=part.group,
        id=entry.id or "",
        due_at=entry.at_ms or entry.due_ms,
        attempts=entry.attempt - (part.state is State.READY),
        error=error,
        **columns_of(record),
    )
