"""What one consumer holds of one shard, as flows: taken from the ready stream, cut into ranges, fetched, settled."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from lisa_common.errors import LisaError, NoGroup, OutcomeUnknown
from lisa_common.model.delivery import Delivery, Entry, entry_place
from lisa_common.model.keys import ShardKeys
from lisa_common.model.policy import Policy
from lisa_common.protocol import consuming
from lisa_common.protocol.call import Call, Flow, command
from lisa_common.protocol.fetching import fetch_within
from lisa_common.protocol.registry import Topics
from lisa_common.protocol.triage import sort_entries

__all__ = ["FIRST", "BeganAnew", "Holding"]

FIRST = "0-0"
"""Before all entries."""

_ENTRIES = 1_000
_MESSAGES, _BYTES = 200, 4_194_304
"""How many messages are fetched at once, and how large they are together; unlike entries they may be large."""


class BeganAnew(LisaError):
    """All of the stream, even what was added just now, lies below what the consumer has read already."""

    def __init__(self, topic: str, entry: str, after: str) -> None:
        super().__init__(
            f"the ready stream of {topic!r} began anew: its entry {entry} is not beyond the offset {after}; "
            "start the query with a new checkpoint"
        )


@dataclass(frozen=True, slots=True)
class Holding:
    """The flows of one consumer. Entries of the stream stand for deliveries, which they become when fetched."""

    topics: Topics = field(repr=False)
    keys: ShardKeys
    group: str
    consumer: str

    def newest(self) -> Flow[str]:
        """The last entry of the stream."""
        found: list[Any] = yield command("XREVRANGE", self.keys.of("ready"), "+", "-", "COUNT", 1)
        return found[0][0].decode() if found else FIRST

    def take(self, after: str, newest: str, rows: int | None, *, beyond: bool) -> Flow[tuple[str, int]]:
        """Reads until the consumer holds `rows` entries beyond `after`, or has met the newest.

        What it holds there already counts first. With `beyond`, what came after the newest is welcome; else it is given
        back. Result: the last entry, `after` for none, and how many it holds. Raises BeganAnew.
        """
        yield consuming.join(self.keys, self.group)
        last, taken = after, 0
        while rows is None or taken < rows:
            limit = _ENTRIES if rows is None else min(_ENTRIES, rows - taken)
            held = yield from self._held(last, limit=limit)
            if held:
                last, taken = held[-1].entry, taken + len(held)
            elif entry_place(last) >= entry_place(newest) or not (
                yield from self._read(last, None if beyond else newest, limit)
            ):
                break
        return last, taken

    def _read(self, after: str, until: str | None, limit: int) -> Flow[bool]:
        """Makes new entries the consumer's. Result: whether there may be any for it to look at."""
        call = consuming.read([self.keys], self.group, self.consumer, limit=limit, block_ms=None)
        try:
            batches = yield call
        except OutcomeUnknown:
            # Whether the reply was lost or never made: what is held now will tell.
            return True
        except NoGroup:
            yield consuming.join(self.keys, self.group)
            return True
        entries: list[Entry] = batches[0][1] if batches else []
        early = [entry for entry in entries if entry_place(entry.entry) <= entry_place(after)]
        late = [entry for entry in entries if until and entry_place(entry.entry) > entry_place(until)]
        if early or late:
            # The group was made anew, or there is more than was asked for: given back, they come again as new entries.
            back, others = self._sorted(early + late)
            yield consuming.release(self.keys, self.group, back)
            if others:
                yield from self._pass_over(others)
        if early and entry_place((yield from self.newest())) <= entry_place(after):
            raise BeganAnew(self.keys.tag, early[0].entry, after)
        return len(entries) > len(late)

    def split(self, after: str, last: str, size: int) -> Flow[list[tuple[str, str]]]:
        """Ranges, each beyond one entry and up to another, of `size` entries that the consumer holds."""
        ranges, begin, count, at = [], after, 0, after
        while held := (yield from self._held(at, last)):
            for entry in held:
                count += 1
                if count == size:
                    ranges.append((begin, entry.entry))
                    begin, count = entry.entry, 0
            at = held[-1].entry
        if count:
            ranges.append((begin, last))
        return ranges

    def fetch(self, after: str, last: str) -> Flow[tuple[str | None, list[Delivery]]]:
        """The next deliveries of a range, and where to go on, None at its end.

        What must not be delivered any more is settled in passing. Raises LisaError when messages cannot be fetched.
        """
        held = yield from self._held(after, last, limit=_MESSAGES)
        if not held:
            return None, []
        ids = [entry.id or "" for entry in held]
        fetch = fetch_within(self.keys, ids, most_bytes=_BYTES, least=1)
        records, now_ms = yield [fetch, consuming.server_time()]
        if isinstance(records, str):
            raise LisaError(f"{len(held)} messages of {self.keys.tag} cannot be fetched: {records}")
        fetched = held[: len(records)]
        found = sort_entries(self.keys, self.group, fetched, records, now_ms)
        policy = yield from self._policy()
        calls: list[Call[Any]] = []
        if found.pass_over:
            calls.append(consuming.pass_over(self.keys, self.group, found.pass_over, policy))
        if found.unreadable:
            calls.append(consuming.nack(self.keys, self.group, found.unreadable, policy))
        if calls:
            yield calls
        is_more = len(held) == _MESSAGES or len(fetched) < len(held)
        return fetched[-1].entry if is_more else None, found.deliveries

    def settle(self, last: str) -> Flow[None]:
        """Acks all that the consumer holds up to an entry."""
        at = FIRST
        while held := (yield from self._held(at, last)):
            ours, others = self._sorted(held)
            yield from self._ack(ours)
            if others:
                yield from self._pass_over(others)
            at = held[-1].entry

    def _ack(self, entries: Sequence[Entry]) -> Flow[None]:
        policy = yield from self._policy()
        while entries:
            try:
                yield consuming.ack(self.keys, self.group, entries, policy)
            except OutcomeUnknown:
                # Acked or not. What an ack has put off is no more among what the consumer holds: all is acked again.
                continue
            return

    def _sorted(self, entries: Sequence[Entry]) -> tuple[list[Entry], list[Entry]]:
        """The group's deliveries, and entries that are none: another group's retries, and foreign ones."""
        ours = [entry for entry in entries if entry.id is not None and entry.group in (None, self.group)]
        others = [e._replace(id=None) for e in entries if e.id is None or e.group not in (None, self.group)]
        return ours, others

    def _pass_over(self, entries: Sequence[Entry]) -> Flow[None]:
        policy = yield from self._policy()
        yield consuming.pass_over(self.keys, self.group, entries, policy)

    def renew(self) -> Flow[None]:
        """Renews the leases on all that the consumer holds."""
        policy = yield from self._policy()
        at = FIRST
        while held := (yield from self._held(at)):
            yield consuming.extend(self.keys, self.group, self.consumer, held, policy)
            at = held[-1].entry

    def _policy(self) -> Flow[Policy]:
        layout = yield from self.topics.resolve(self.keys.topic)
        return layout.policy

    def _held(self, after: str, last: str = "+", limit: int = _ENTRIES) -> Flow[list[Entry]]:
        call = consuming.held(self.keys, self.group, self.consumer, after=after, last=last, limit=limit)
        try:
            held: list[Entry] = yield call
        except NoGroup:
            # Destroyed, and with it all that was held.
            return []
        return held
