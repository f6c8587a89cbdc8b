"""The flows of a consumer that lends its deliveries, without I/O; `AsyncLender` runs them."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from lisa_common.errors import InvalidInput, LisaError
from lisa_common.model.delivery import Delivery, Entry, delivery_of
from lisa_common.model.keys import ShardKeys
from lisa_common.model.record import Record
from lisa_common.model.sharding import Layout
from lisa_common.protocol import consuming, lending
from lisa_common.protocol.call import Call, Flow, IndependentCalls, error_in
from lisa_common.protocol.consuming import AckOutcome, Nack, NackOutcome
from lisa_common.protocol.lending import Loan
from lisa_common.validation import Duration, check_bool, check_bytes, check_id, check_name, duration_ms
from lisa_consumer.delivery.arguments import check_delivery
from lisa_consumer.delivery.core import Core

__all__ = ["LendingFlows", "Lent", "Note", "Settlement"]


class Lent(NamedTuple):
    """A delivery that is lent, as any process finds it by the id of its message."""

    delivery: Delivery
    """Without headers and body, if the message has no record any more."""
    record: Record | None
    consumer: str
    """The consumer that has read it."""


class Note(NamedTuple):
    """A note to keep on a message that ends with an ack: made from the lent delivery, kept for so many ms.

    There is no note on a message that was cancelled before.
    """

    make: Callable[[Lent], bytes]
    keep_ms: int


class Settlement(NamedTuple):
    """A request to end a lent delivery by the id of its message: with an ack, or with a nack."""

    group: str
    topic: str
    id: str
    delay_ms: int | None = None
    """Of a nack: None for the backoff of the topic's policy."""
    is_ack: bool = True
    rejected: bool = False
    error: str = ""
    note: Note | None = None


Outcome = AckOutcome | NackOutcome | LisaError | None
"""The outcome of a settlement; None: nothing is lent by this id."""

_Found = tuple[int, ShardKeys, Lent]
"""The position of a settlement, the shard, and what is lent."""


class LendingFlows(Core):
    """The flows of a consumer that lends."""

    may_follow = False

    def __init__(self, prefix: str, group: str, name: str | None = None, *, most_bytes: int | None = None) -> None:
        super().__init__(prefix, group, name)
        self._records.most_bytes = most_bytes

    def _ends_with_drop(self, topic: str) -> bool:  # noqa: ARG002 - it has chosen none of them
        return True

    def lend(self, loans: Sequence[tuple[Delivery, Duration]], *, by_id: bool = True) -> Flow[list[bool]]:
        """Gives deliveries their leases, and remembers them by id. Returns False for each whose lease was lost.

        All in one round trip. Raises InvalidInput for a lease that is no duration. After an error, some may be leased:
        the caller hands all of them back.
        """
        check_bool("by_id", by_id)
        for loan in loans:
            _check_loan(loan)
        layouts = yield from self.topics.recall_each({delivery.topic for delivery, _ in loans})
        by_lease: dict[tuple[ShardKeys, int], list[int]] = {}
        for position, (delivery, lease) in enumerate(loans):
            keys = self._keys[delivery.topic, delivery.shard]
            by_lease.setdefault((keys, duration_ms("lease", lease, low_ms=1)), []).append(position)
        leases: list[Call[Any]] = []
        notes: list[Call[Any]] = []
        for (keys, lease_ms), positions in by_lease.items():
            entries = [loans[at][0].entry for at in positions]
            policy = layouts[keys.topic].policy
            leases.append(consuming.extend(keys, self.group, self.name, entries, policy, lease_ms=lease_ms, lent=True))
            if not by_id:
                continue
            notes += [lending.store_loan(keys, self.group, Loan(entry, self.name), lease_ms) for entry in entries]
        replies = yield IndependentCalls([*leases, *notes])
        if error := error_in(replies):
            raise error
        kept = [False] * len(loans)
        for positions, reply in zip(by_lease.values(), replies[: len(leases)], strict=True):
            for at, is_kept in zip(positions, reply, strict=True):
                kept[at] = is_kept
        return kept

    def hand_back(self, deliveries: Sequence[Delivery]) -> Flow[None]:
        """Releases deliveries that reach nobody. What it cannot release, the next read, or the close, does."""
        try:
            yield from self.release(deliveries)
        except (LisaError, GeneratorExit):
            self.leave(deliveries)
            raise

    def end_each(self, settlements: Sequence[Settlement]) -> Flow[list[Outcome]]:
        """Ends the lent deliveries of these ids. Returns for each its outcome or its own error."""
        outcomes: list[Outcome] = [None] * len(settlements)
        found: list[_Found] = []
        recalled = yield from self._recall_each([(each.group, each.topic, each.id) for each in settlements])
        for at, lent in enumerate(recalled):
            if isinstance(lent, LisaError):
                outcomes[at] = lent
            elif lent:
                found.append((at, *lent))
        layouts = yield from self.topics.recall_each({keys.topic for _, keys, _ in found})
        by_kind: dict[tuple[ShardKeys, str, bool], list[_Found]] = {}
        for item in found:
            settlement = settlements[item[0]]
            by_kind.setdefault((item[1], settlement.group, settlement.is_ack), []).append(item)
        calls = [self._settlement_call(layouts, settlements, items) for items in by_kind.values()]
        # A message without a record was cancelled: its end is noted by who did that.
        notes = [
            self._note(settlements[at], keys, lent) for at, keys, lent in found if settlements[at].note and lent.record
        ]
        replies = (yield IndependentCalls([*notes, *calls])) if calls else []
        # A full server refuses notes, and has room once messages have ended.
        refused = [note for note, reply in zip(notes, replies, strict=False) if isinstance(reply, LisaError)]
        replies = replies[len(notes) :]
        drops: list[Call[Any]] = []
        for items, reply in zip(by_kind.values(), replies, strict=True):
            results = [reply] * len(items) if isinstance(reply, LisaError) else reply
            for (at, keys, _), result in zip(items, results, strict=True):
                outcome: Outcome = result[0] if isinstance(result, tuple) else result
                outcomes[at] = outcome
                # A stale one has been replaced, perhaps by a loan that is still good.
                if not isinstance(outcome, LisaError) and outcome not in (AckOutcome.STALE, NackOutcome.STALE):
                    drops.append(lending.drop_loan(keys, settlements[at].group, settlements[at].id))
        if drops:
            yield IndependentCalls([*drops, *refused])
        return outcomes

    def _settlement_call(
        self, layouts: dict[str, Layout], settlements: Sequence[Settlement], items: Sequence[_Found]
    ) -> Call[Any]:
        at, keys, _ = items[0]
        group, policy = settlements[at].group, layouts[keys.topic].policy
        entries = [lent.delivery.entry for _, _, lent in items]
        if settlements[at].is_ack:
            return consuming.ack(keys, group, entries, policy)
        nacks = [
            Nack(lent.delivery.entry, settlements[at].error, settlements[at].delay_ms, settlements[at].rejected)
            for at, _, lent in items
        ]
        return consuming.nack(keys, group, nacks, policy)

    def _note(self, settlement: Settlement, keys: ShardKeys, lent: Lent) -> Call[Any]:
        note = settlement.note
        assert note is not None  # noqa: S101 - the caller has looked
        return lending.store_note(keys, settlement.id, note.make(lent), note.keep_ms)

    def _recall_each(
        self, places: Sequence[tuple[str, str, str]]
    ) -> Flow[list[tuple[ShardKeys, Lent] | LisaError | None]]:
        """Returns the lent delivery of each group, topic and id, or None."""
        layouts = yield from self.topics.resolve_sent({topic for _, topic, _ in places})
        homes = [layouts[topic].homes(id) for _, topic, id in places]
        calls = [
            call
            for (group, _, id), shards in zip(places, homes, strict=True)
            for keys in shards
            for call in (lending.read_loan(keys, group, id), lending.lent_record(keys, id))
        ]
        replies = iter((yield IndependentCalls(calls)) if calls else [])
        results: list[tuple[ShardKeys, Lent] | LisaError | None] = []
        for (group, _, _), shards in zip(places, homes, strict=True):
            result: tuple[ShardKeys, Lent] | LisaError | None = None
            for keys in shards:
                loan, record = next(replies), next(replies)
                error = error_in((loan, record))
                if error or loan:
                    result = result or error or (keys, _lent(keys, group, loan, record))
            results.append(result)
        return results

    def store_note(self, topic: str, id: str, note: bytes, keep: Duration) -> Flow[None]:
        """Stores a note on a message for a time."""
        keep_ms = duration_ms("keep", keep, low_ms=1)
        check_bytes("note", note)
        layout = yield from self._layout(topic, id)
        yield lending.store_note(layout.home(id), id, note, keep_ms)

    def read_note(self, topic: str, id: str) -> Flow[bytes | None]:
        """The note on a message; None for none."""
        layout = yield from self._layout(topic, id)
        notes: list[bytes | None] = yield [lending.read_note(keys, id) for keys in layout.homes(id)]
        return next((note for note in notes if note is not None), None)

    def drop_note(self, topic: str, id: str) -> Flow[bool]:
        """Forgets the note on a message. Returns whether there was one."""
        layout = yield from self._layout(topic, id)
        counts: list[int] = yield [lending.drop_note(keys, id) for keys in layout.homes(id)]
        return any(counts)

    def end_window(self, topic: str, id: str) -> Flow[None]:
        """Ends the dedup window of an id."""
        layout = yield from self._layout(topic, id)
        yield [lending.end_window(keys, id) for keys in layout.homes(id)]

    def _layout(self, topic: str, id: str) -> Flow[Layout]:
        check_id(id)
        return (yield from self.topics.resolve_each([check_name("topic", topic)]))[topic]

    def server_time(self) -> Flow[int]:
        """The server's time in ms; of a Cluster, that of one node."""
        now_ms: int = yield consuming.server_time()
        return now_ms


def _check_loan(value: object) -> None:
    if not isinstance(value, tuple) or len(value) != 2:  # noqa: PLR2004 - a pair
        raise InvalidInput("loan", value, "a delivery and a time")
    check_delivery(value[0])


def _lent(keys: ShardKeys, group: str, loan: Loan, record: Record | None) -> Lent:
    entry: Entry = loan.entry
    # The record may be of a later message with the same id.
    if record is not None and record.due_ms != entry.due_ms:
        record = None
    known = record or Record(0, entry.due_ms, b"", None, None, 0, {})
    return Lent(delivery_of(keys, group, entry, known), record, loan.consumer)
