"""Fetches the messages of a range of pending entries, page by page, as flows."""

from collections.abc import Sequence
from typing import Any

from lisa_common.errors import LisaError, NoGroup
from lisa_common.model.delivery import Delivery, Entry, entry_of, entry_place
from lisa_common.protocol import consuming, holding
from lisa_common.protocol.call import Call, Flow, command
from lisa_common.protocol.fetching import fetch, fetch_within
from lisa_common.protocol.replies import rows
from lisa_common.protocol.triage import sort_entries
from lisa_producer.spark.pending_entries import PendingEntries
from lisa_producer.spark.ranges import Entries

__all__ = ["RangeFetcher"]

_MOST = 1_000
"""Entries of one page."""
_FIRST = 100
"""Messages of the first fetch, as their sizes are not known."""
_MAX_BYTES = 4_194_304
"""Most bytes of one fetch, as messages may be large."""


class RangeFetcher:
    """Fetches what one consumer holds in a range."""

    def __init__(self, pending: PendingEntries, entries: Entries) -> None:
        self.is_done = False
        self._pending = pending
        self._after = entries.after
        self._last = entries.last
        self._listed: list[Entry] = []
        """Entries that are not fetched yet."""
        self._largest: int | None = None
        """Bytes of the largest of the latest records."""

    def next_page(self) -> Flow[list[Delivery]]:
        """The next deliveries. Settles expired and unreadable messages instead, and sets `is_done` at the end.

        Raises LisaError when messages cannot be fetched.
        """
        keys, group = self._pending.keys, self._pending.group
        entries = self._listed or (yield from self._list())
        if not entries:
            self.is_done = True
            return []
        records, now_ms = yield [self._fetch(entries), consuming.server_time()]
        if isinstance(records, str):
            raise LisaError(f"cannot fetch {len(entries)} messages of {keys.tag}: {records}")
        fetched, self._listed = entries[: len(records)], entries[len(records) :]
        triage = sort_entries(keys, group, fetched, records, now_ms)
        if triage.skip or triage.unreadable:
            policy = yield from self._pending.policy()
            calls: list[Call[Any]] = [consuming.discard(keys, group, triage.skip, policy)] if triage.skip else []
            calls += [consuming.nack(keys, group, triage.unreadable, policy)] if triage.unreadable else []
            yield calls
        self._after = fetched[-1].entry
        self.is_done = not self._listed and self._after == self._last
        self._largest = max(map(len, filter(None, records)), default=None)
        return triage.deliveries

    def _fetch(self, entries: Sequence[Entry]) -> Call[list[bytes | None] | str]:
        """The records of the first entries; of all, if they fit when they are as large as the records before."""
        ids = [entry.id or "" for entry in (entries if self._largest else entries[:_FIRST])]
        if self._largest and self._largest * len(ids) <= _MAX_BYTES:
            return fetch(self._pending.keys, ids)
        # Only the script keeps to a limit, but it costs the server three times as much.
        return fetch_within(self._pending.keys, ids, most_bytes=_MAX_BYTES, least=1)

    def _list(self) -> Flow[list[Entry]]:
        """The next pending entries, with their fields."""
        keys, group, consumer = self._pending.keys, self._pending.group, self._pending.consumer
        held = holding.held_entries(keys, group, consumer, after=self._after, last=self._last, limit=_MOST)
        page = command("XRANGE", keys.of("ready"), f"({self._after}", self._last, "COUNT", _MOST, decode=rows)
        try:
            names, found = yield [held, page]
        except NoGroup:
            # The group was destroyed, with its pending entries.
            return []
        fields = dict(found)
        entries = [entry_of(name.encode(), fields.get(name.encode())) for name in names]
        if len(found) < _MOST:
            return entries
        # Those of other consumers lie between.
        end = found[-1][0].decode()
        listed = [entry for entry in entries if entry_place(entry.entry) <= entry_place(end)]
        if len(listed) == len(entries):
            return entries
        return listed + (yield from self._pending.held(end, self._last, len(entries) - len(listed)))
