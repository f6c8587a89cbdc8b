"""What one consumer of a group holds, as flows: taken from the ready stream, cut into ranges, fetched, settled."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from lisa_common.call import Call, Flow, command
from lisa_common.delivery import Delivery, Entry, entry_place
from lisa_common.errors import LisaError, NoGroup, OutcomeUnknown
from lisa_common.keys import TopicKeys
from lisa_common.protocol import consuming
from lisa_common.reading import sort_entries
from lisa_common.topics import Topics

__all__ = ["FIRST", "BeganAnew", "Holding"]

FIRST = "0-0"
"""Before all entries."""

_ENTRIES = 1_000
_MESSAGES = 200
"""How many messages are fetched at once; unlike entries they may be large."""


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
    topic: str
    group: str
    consumer: str

    @property
    def _keys(self) -> TopicKeys:
        return TopicKeys(self.topics.prefix, self.topic)

    def newest(self) -> Flow[str]:
        """The last entry of the stream."""
        found: list[Any] = yield command("XREVRANGE", self._keys.of("ready"), "+", "-", "COUNT", 1)
        return found[0][0].decode() if found else FIRST

    def take(self, after: str, newest: str, rows: int | None, *, beyond: bool) -> Flow[str]:
        """Reads until the consumer holds `rows` entries beyond `after`, or has met the newest.

        What it holds there already counts first. With `beyond`, what came after the newest is welcome; else it is given
        back. Result: the last entry, `after` for none. Raises BeganAnew.
        """
        yield consuming.join(self._keys, self.group)
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
        return last

    def _read(self, after: str, until: str | None, limit: int) -> Flow[bool]:
        """Makes new entries the consumer's. Result: whether there may be any for it to look at."""
        call = consuming.read([self._keys], self.group, self.consumer, limit=limit, block_ms=None)
        try:
            batches = yield call
        except OutcomeUnknown:
            # Whether the reply was lost or never made: what is held now will tell.
            return True
        except NoGroup:
            yield consuming.join(self._keys, self.group)
            return True
        entries: list[Entry] = batches[0][1] if batches else []
        early = [entry for entry in entries if entry_place(entry.entry) <= entry_place(after)]
        late = [entry for entry in entries if until and entry_place(entry.entry) > entry_place(until)]
        if early or late:
            # The group was made anew, or there is more than was asked for: given back, they come again as new entries.
            back, others = self._sorted(early + late)
            yield consuming.release(self._keys, self.group, back)
            if others:
                yield from self._pass_over(others)
        if early and entry_place((yield from self.newest())) <= entry_place(after):
            raise BeganAnew(self.topic, early[0].entry, after)
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
        records, now_ms = yield [consuming.fetch(self._keys, ids), consuming.server_time()]
        if isinstance(records, str):
            raise LisaError(f"{len(held)} messages of {self.topic} cannot be fetched: {records}")
        found = sort_entries(self._keys, self.group, held, records, now_ms)
        _, policy = yield from self.topics.resolve(self.topic)
        calls: list[Call[Any]] = []
        if found.pass_over:
            calls.append(consuming.pass_over(self._keys, self.group, found.pass_over, policy))
        if found.unreadable:
            calls.append(consuming.nack(self._keys, self.group, found.unreadable, policy))
        if calls:
            yield calls
        return held[-1].entry if len(held) == _MESSAGES else None, found.deliveries

    def settle(self, last: str) -> Flow[None]:
        """Acks all that the consumer holds up to an entry."""
        at = FIRST
        while held := (yield from self._held(at, last)):
            ours, others = self._sorted(held)
            _, policy = yield from self.topics.resolve(self.topic)
            try:
                if ours:
                    yield consuming.ack(self._keys, self.group, ours, policy)
                if others:
                    yield from self._pass_over(others)
            except OutcomeUnknown:
                # Acked or not: what is still held is acked again.
                continue
            at = held[-1].entry

    def _sorted(self, entries: Sequence[Entry]) -> tuple[list[Entry], list[Entry]]:
        """The group's deliveries, and entries that are none: another group's retries, and foreign ones."""
        ours = [entry for entry in entries if entry.id is not None and entry.group in (None, self.group)]
        others = [e._replace(id=None) for e in entries if e.id is None or e.group not in (None, self.group)]
        return ours, others

    def _pass_over(self, entries: Sequence[Entry]) -> Flow[None]:
        _, policy = yield from self.topics.resolve(self.topic)
        yield consuming.pass_over(self._keys, self.group, entries, policy)

    def renew(self) -> Flow[float]:
        """Renews the leases on all that the consumer holds. Result: the visibility timeout, in seconds."""
        _, policy = yield from self.topics.resolve(self.topic)
        at = FIRST
        while held := (yield from self._held(at)):
            yield consuming.extend(self._keys, self.group, self.consumer, held, policy)
            at = held[-1].entry
        return policy.visibility_ms / 1000

    def _held(self, after: str, last: str = "+", limit: int = _ENTRIES) -> Flow[list[Entry]]:
        call = consuming.held(self._keys, self.group, self.consumer, after=after, last=last, limit=limit)
        try:
            held: list[Entry] = yield call
        except NoGroup:
            # Destroyed, and with it all that was held.
            return []
        return held
