"""Fetches the messages of a range of pending entries, page by page, as flows."""

from dataclasses import dataclass
from typing import Any

from lisa_common.errors import LisaError, NoGroup
from lisa_common.model.delivery import Delivery, Entry, entry_of, entry_place
from lisa_common.protocol import consuming, holding
from lisa_common.protocol.call import Call, Flow, command
from lisa_common.protocol.fetching import fetch, fetch_within
from lisa_common.protocol.replies import rows
from lisa_common.protocol.triage import sort_entries
from lisa_producer.spark.pending_entries import PendingEntries

__all__ = ["RangeFetcher"]

_FIRST, _MOST = 100, 1_000
"""Messages of the first page, whose sizes are not known, and of each other one."""
_MAX_BYTES = 4_194_304
"""Most bytes of one page, as messages may be large."""


@dataclass(slots=True)
class RangeFetcher:
    """Fetches what one consumer holds after one entry and up to another."""

    pending: PendingEntries
    after: str
    last: str
    is_done: bool = False
    _most: int = _FIRST
    _largest: int = _MAX_BYTES
    """Bytes of the largest record so far."""

    def next_page(self) -> Flow[list[Delivery]]:
        """The next deliveries. Settles expired and unreadable messages instead, and sets `is_done` at the end.

        Raises LisaError when messages cannot be fetched.
        """
        keys, group = self.pending.keys, self.pending.group
        entries = yield from self._list()
        if not entries:
            self.is_done = True
            return []
        records, now_ms = yield [self._fetch(entries), consuming.server_time()]
        if isinstance(records, str):
            raise LisaError(f"cannot fetch {len(entries)} messages of {keys.tag}: {records}")
        fetched = entries[: len(records)]
        triage = sort_entries(keys, group, fetched, records, now_ms)
        calls: list[Call[Any]] = []
        if triage.skip or triage.unreadable:
            policy = yield from self.pending.policy()
            calls = [consuming.skip(keys, group, triage.skip, policy)] if triage.skip else []
            calls += [consuming.nack(keys, group, triage.unreadable, policy)] if triage.unreadable else []
            yield calls
        self.after = fetched[-1].entry
        self.is_done = len(entries) < self._most and len(fetched) == len(entries)
        self._largest = max(map(len, filter(None, records)), default=_MAX_BYTES)
        self._most = _MOST
        return triage.deliveries

    def _fetch(self, entries: list[Entry]) -> Call[list[bytes | None] | str]:
        """The records of the first entries: of all if they fit, should they be as large as those before."""
        ids = [entry.id or "" for entry in entries]
        if self._largest * len(ids) <= _MAX_BYTES:
            return fetch(self.pending.keys, ids)
        # Only the script keeps to a limit, but it costs the server twice as much.
        return fetch_within(self.pending.keys, ids, most_bytes=_MAX_BYTES, least=1)

    def _list(self) -> Flow[list[Entry]]:
        """The next pending entries, with their fields."""
        keys, group, consumer = self.pending.keys, self.pending.group, self.pending.consumer
        held = holding.held_entries(keys, group, consumer, after=self.after, last=self.last, limit=self._most)
        page = command("XRANGE", keys.of("ready"), f"({self.after}", self.last, "COUNT", self._most, decode=rows)
        try:
            names, found = yield [held, page]
        except NoGroup:
            # The group was destroyed, with its pending entries.
            return []
        fields = dict(found)
        entries = [entry_of(name.encode(), fields.get(name.encode())) for name in names]
        if len(found) < self._most:
            return entries
        # Those of other consumers lie between.
        end = entry_place(found[-1][0].decode())
        listed = [entry for entry in entries if entry_place(entry.entry) <= end]
        if len(listed) == len(entries):
            return entries
        rest = yield from self.pending.held(found[-1][0].decode(), self.last, len(entries) - len(listed))
        return listed + rest
