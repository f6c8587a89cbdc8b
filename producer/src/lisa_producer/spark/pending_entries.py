"""The pending entries of one consumer in one shard, as flows: read, cut into ranges, fetched, settled."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from lisa_common.errors import LisaError, NoGroup, OutcomeUnknown
from lisa_common.model.delivery import Entry, entry_place
from lisa_common.model.failure import Failure, read_failure
from lisa_common.model.keys import ShardKeys, copy_of
from lisa_common.model.policy import Policy
from lisa_common.protocol import consuming, holding
from lisa_common.protocol.call import Call, Flow, command
from lisa_common.protocol.marking import StartMark, mark
from lisa_common.protocol.registry import Topics
from lisa_common.protocol.replies import fields_of

__all__ = ["FIRST", "PendingEntries", "StreamReset", "Taken", "backlog", "read_infos"]

T = TypeVar("T")

FIRST = "0-0"
"""Before all entries."""

_ENTRIES = 1_000
"""Entries in one reply; they are small."""
_PLACES = 5_000
"""Entries in one reply that only names them."""


class StreamReset(LisaError):
    """All entries of the stream, even new ones, come before the offset: the stream was deleted or rolled back."""

    def __init__(self, topic: str, entry: str, after: str) -> None:
        super().__init__(
            f"the ready stream of {topic!r} was reset: new entry {entry} must come after the offset {after}; "
            "start the query with a new checkpoint"
        )


class Taken(NamedTuple):
    """The entries of one shard in a micro-batch: the last one, their number, and the bytes of their messages."""

    last: str
    rows: int = 0
    bytes: int = 0
    is_full: bool = False
    """Whether the batch must end here, as a message must be alone in it, or is too large for it."""
    entries: list[Entry] = []  # noqa: RUF012 - replaced, never changed
    """All of them."""


@dataclass(frozen=True, slots=True)
class PendingEntries:
    """The flows of one consumer. An entry refers to a message; fetching returns it as a delivery."""

    topics: Topics = field(repr=False)
    keys: ShardKeys
    group: str
    consumer: str

    def newest(self) -> Flow[str]:
        """The last entry of the stream."""
        entries: list[Any] = yield command("XREVRANGE", self.keys.of("ready"), "+", "-", "COUNT", 1)
        return entries[0][0].decode() if entries else FIRST

    def take(
        self,
        after: str,
        newest: str,
        rows: int,
        *,
        beyond: bool,
        most_bytes: int | None = None,
        first: bool = True,
    ) -> Flow[Taken]:
        """Reads until `rows` entries after `after` are pending, or the newest is; entries already pending count first.

        Entries after the newest are kept with `beyond`, else released. An entry that must run alone is taken alone, if
        the shard is the `first` of the batch. With `most_bytes` it ends before the first message beyond; a message that
        is larger is taken alone. Raises StreamReset.
        """
        yield consuming.join(self.keys, self.group)
        taken, is_listed = Taken(after, entries=[]), False
        while taken.rows < rows:
            limit = min(_ENTRIES, rows - taken.rows)
            entries: list[Entry] | None = [] if is_listed else (yield from self.held(taken.last, limit=limit))
            if not entries:
                if entry_place(taken.last) >= entry_place(newest):
                    break
                entries = yield from self._read(taken.last, None if beyond else newest, limit)
                is_listed = entries is not None
            if entries == []:
                break
            taken = yield from self._add(taken, entries or [], most_bytes, first=first)
            if taken.is_full:
                return taken
        return taken

    def _add(self, taken: Taken, entries: Sequence[Entry], most_bytes: int | None, *, first: bool) -> Flow[Taken]:
        """Adds entries, up to one with which the batch must end."""
        sizes = [0] * len(entries)
        if most_bytes is not None and entries:
            sizes = yield [command("HSTRLEN", self.keys.of("messages"), entry.id or "") for entry in entries]
        elif entries and not any(entry.alone for entry in entries):
            taken.entries.extend(entries)
            return taken._replace(last=entries[-1].entry, rows=taken.rows + len(entries))
        for entry, size in zip(entries, sizes, strict=True):
            is_large = most_bytes is not None and taken.bytes + size > most_bytes
            if (taken.rows or not first) and (entry.alone or is_large):
                return taken._replace(is_full=True)
            taken.entries.append(entry)
            taken = Taken(entry.entry, taken.rows + 1, taken.bytes + size, entry.alone, taken.entries)
            if taken.is_full:
                return taken
        return taken

    def _read(self, after: str, until: str | None, limit: int) -> Flow[list[Entry] | None]:
        """Reads new entries for the consumer. Returns those in the range; None if others may be pending now."""
        call = consuming.read([self.keys], self.group, self.consumer, limit=limit, block_ms=None)
        try:
            batches = yield call
        except OutcomeUnknown:
            # If the entries were read, they are pending now.
            return None
        except NoGroup:
            yield consuming.join(self.keys, self.group)
            return None
        entries: list[Entry] = batches[0][1] if batches else []
        early: list[Entry] = []
        late: list[Entry] = []
        # They come in order.
        if entries and entry_place(entries[0].entry) <= entry_place(after):
            early = [entry for entry in entries if entry_place(entry.entry) <= entry_place(after)]
        if entries and until and entry_place(entries[-1].entry) > entry_place(until):
            late = [entry for entry in entries if entry_place(entry.entry) > entry_place(until)]
        if early or late:
            # The group was created again, or there are entries after the end: released, they come again as new entries.
            yield from self._release(early + late)
        if early and entry_place((yield from self.newest())) <= entry_place(after):
            raise StreamReset(self.keys.tag, early[0].entry, after)
        return None if early else entries[: len(entries) - len(late)]

    def _release(self, entries: Sequence[Entry]) -> Flow[None]:
        ours = yield from self._ours(entries)
        yield consuming.release(self.keys, self.group, ours)

    def pass_over(self, last: str) -> Flow[None]:
        """Acks what nobody in the group has read up to an entry. Gives back what this consumer has read beyond it."""
        entries: list[Any] | None = yield command("XRANGE", self.keys.of("ready"), "-", last, "COUNT", 1)
        while entries != []:
            entries = yield from self._read(FIRST, last, _ENTRIES)
            yield from self.settle(last)
        # A driver had read it that died, or lost the reply.
        yield from self.give_back(last, "+", 0)

    def places(self, after: str, last: str) -> Flow[list[str]]:
        """The pending entries after one and up to another."""
        places: list[str] = []
        while page := (yield from self._places(places[-1] if places else after, last)):
            places += page
        return places

    def give_back(self, after: str, last: str, keep: int) -> Flow[str]:
        """Releases the pending entries of a range but the first ones: they come again as new entries, no attempt spent.

        Returns the last entry that is kept.
        """
        kept = (yield from self.held(after, last, limit=keep)) if keep else []
        end = kept[-1].entry if kept else after
        while entries := (yield from self.held(end, last)):
            yield from self._release(entries)
        return end

    def isolate(self, after: str, last: str, error: str) -> Flow[None]:
        """Nacks the pending entries of a range. Their next deliveries are alone."""
        policy = yield from self.policy()
        ours = yield from self._ours((yield from self.held(after, last)))
        if ours:
            yield consuming.nack(
                self.keys, self.group, [consuming.Nack(entry, error, isolated=True) for entry in ours], policy
            )

    def is_alone(self, after: str, last: str) -> Flow[bool]:
        """Whether the first pending entry of a range must run alone."""
        return any(entry.alone for entry in (yield from self.held(after, last, limit=1)))

    def mark_begun(self, last: str, begun: StartMark) -> Flow[None]:
        """Marks one pending entry as begun: if its lease runs out, that is an attempt."""
        yield mark(self.keys, self.group, self.consumer, [last], begun)

    def settle(self, last: str, known: Sequence[Entry] = ()) -> Flow[None]:
        """Acks all pending entries up to an entry. Those that are `known` need not be read again."""
        at = FIRST
        for first in range(0, len(known), _PLACES):
            part = known[first : first + _PLACES]
            # Rows may have been nacked meanwhile.
            if not (yield from self._holds_all(len(known) - first, known[-1].entry)):
                held = set((yield from self._places(FIRST, part[-1].entry)))
                part = [entry for entry in part if entry.entry in held]
            for begin in range(0, len(part), _ENTRIES):
                yield from self._settle(part[begin : begin + _ENTRIES])
        while entries := (yield from self.held(at, last)):
            yield from self._settle(entries)
            at = entries[-1].entry

    def settle_late(self, rows: Sequence[Entry]) -> Flow[None]:
        """Acks rows whose leases may have run out; not those that `foreachBatch` has nacked."""
        for first in range(0, len(rows), _ENTRIES):
            part = rows[first : first + _ENTRIES]
            stored = yield [command("HGET", self.keys.of("failures"), copy_of(self.group, e.id or "")) for e in part]
            failures = map(read_failure, stored)
            if ours := [row for row, failure in zip(part, failures, strict=True) if not _is_nacked(row, failure)]:
                yield from self._settle(ours)

    def _holds_all(self, count: int, last: str) -> Flow[bool]:
        """Whether all of `count` entries, of which the last is `last`, are pending still.

        Pass all that were pending up to that one: what the consumer has got since comes after it.
        """
        held = holding.count_held(self.keys, self.group, self.consumer)
        later = holding.held_entries(self.keys, self.group, self.consumer, after=last, limit=1)
        try:
            total, others = yield [held, later]
        except NoGroup:
            return False
        return bool(total == count and not others)

    def _settle(self, entries: Sequence[Entry]) -> Flow[None]:
        ours, policy = (yield from self._ours(entries)), (yield from self.policy())
        while ours:
            try:
                yield consuming.ack(self.keys, self.group, ours, policy)
            except OutcomeUnknown:
                # Repeat the whole ack: entries that an unfinished ack put off are no longer pending.
                continue
            return

    def _ours(self, entries: Sequence[Entry]) -> Flow[list[Entry]]:
        """The group's deliveries. Discards the others: another group's retries, and foreign entries."""
        others = [e._replace(id=None) for e in entries if e.id is None or e.group not in (None, self.group)]
        if others:
            policy = yield from self.policy()
            yield consuming.discard(self.keys, self.group, others, policy)
        return [entry for entry in entries if entry.id is not None and entry.group in (None, self.group)]

    def renew(self, age_ms: int) -> Flow[None]:
        """Renews the leases of pending entries that were neither read nor renewed for so long."""
        at = FIRST
        while ages := (yield from self._ages(at)):
            at = ages[-1][0]
            if aged := [entry for entry, age in ages if age >= age_ms]:
                yield holding.renew(self.keys, self.group, self.consumer, aged)

    def _ages(self, after: str) -> Flow[list[tuple[str, int]]]:
        return _unless_destroyed(holding.held_ages(self.keys, self.group, self.consumer, after=after, limit=_PLACES))

    def policy(self) -> Flow[Policy]:
        """The topic's policy."""
        layout = yield from self.topics.resolve(self.keys.topic)
        return layout.policy

    def held(self, after: str, last: str = "+", limit: int = _ENTRIES) -> Flow[list[Entry]]:
        """The first pending entries after one and up to another."""
        return _unless_destroyed(
            consuming.list_pending(self.keys, self.group, self.consumer, after=after, last=last, limit=limit)
        )

    def _places(self, after: str, last: str = "+") -> Flow[list[str]]:
        return _unless_destroyed(
            holding.held_entries(self.keys, self.group, self.consumer, after=after, last=last, limit=_PLACES)
        )


def _unless_destroyed(call: Call[list[T]]) -> Flow[list[T]]:
    """What a call lists; nothing where the group was destroyed, with its pending entries."""
    try:
        listed: list[T] = yield call
    except NoGroup:
        return []
    return listed


def _is_nacked(entry: Entry, failure: Failure | None) -> bool:
    """Returns True for a delivery that was nacked, also if an operator has replayed it since."""
    if failure is None or failure.entry != entry.entry:
        return False
    # A lease that runs out spends no attempt, and leaves the reason of the delivery before.
    has_spent = failure.attempts >= entry.attempt
    return failure.reason == "replayed" or (has_spent and failure.reason in ("nack", "rejected"))


def read_infos(keys: ShardKeys) -> Flow[list[dict[str, Any]]]:
    """What XINFO GROUPS says of each group of a shard; none without a stream."""
    infos: list[dict[str, Any]] = yield command("XINFO", "GROUPS", keys.of("ready"), decode=_infos, takes_errors=True)
    return infos


def _infos(reply: Any) -> list[dict[str, Any]]:
    if isinstance(reply, LisaError) and "no such key" not in str(reply):
        raise reply
    return [] if isinstance(reply, LisaError) else [fields_of(each) for each in reply]


def backlog(keys: ShardKeys, group: str) -> Flow[int | None]:
    """How many entries of a shard a group has not read or not settled; None if the server cannot tell."""
    for info in (yield from read_infos(keys)):
        if info["name"] == group.encode():
            lag = info.get("lag")
            return None if lag is None else int(lag) + int(info["pending"])
    return 0
