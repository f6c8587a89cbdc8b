"""Calls of the producer: send, cancel, reschedule, find."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from itertools import chain, zip_longest
from typing import Any

from lisa_common.errors import OutcomeUnknown
from lisa_common.model.death import Death, read_deaths
from lisa_common.model.failure import Failure, read_failure
from lisa_common.model.keys import ShardKeys, text_of
from lisa_common.model.message import Outgoing, RepeatedDue, Replacement
from lisa_common.model.record import Record, is_cancelled, read_record
from lisa_common.model.sharding import Layout
from lisa_common.protocol.call import Call, in_parts, script
from lisa_common.protocol.replies import number, numbers, rows
from lisa_common.protocol.scripts import Arg, load

__all__ = [
    "CancelOutcome",
    "CopyState",
    "Found",
    "RescheduleOutcome",
    "State",
    "UpdateOutcome",
    "cancel",
    "find",
    "reschedule",
    "send",
    "update",
]


SENDS = ("send", "replace")
"""The scripts that store messages for producers."""


def send(keys: ShardKeys, messages: Sequence[Outgoing], *, repeatable: bool, now_ms: Arg = "") -> Call[list[int]]:
    """Stores and schedules messages; either all of them are replacements, or none.

    Returns for each its due time in ms, negative if it replaced another message, 0 for a duplicate. Raises Resharded
    if the shard is closed. One call may do only the first of many replacements, as its work is bounded: then the result
    is shorter, and the caller sends the rest.
    """
    name = "replace" if messages and type(messages[0]) is Replacement else "send"
    loaded = load(name)
    # All calls of a shard that go by the server's clock begin alike.
    head = keys.heads.get(name) if now_ms == "" else None
    if head is None:
        head = loaded.head(keys, now_ms=now_ms)
        if now_ms == "":
            keys.heads[name] = head
    if len(messages) == 1:
        return Call((*head, *messages[0]), lambda reply: [number(reply)], loaded, repeatable)
    items: Sequence[Sequence[Arg]] = messages
    decode = partial(_first_dues if name == "replace" else numbers, count=len(items))
    return Call((*head, *chain.from_iterable(items)), decode, loaded, repeatable)


def _first_dues(reply: Any, count: int) -> list[int]:
    dues = numbers(reply)
    if not 1 <= len(dues) <= count:
        raise ValueError(f"it must be a list of 1 to {count} items, not {len(dues)}")
    return dues


def send_again(call: Call[Any], began: float) -> Call[Any]:
    """The call that repeats one whose reply was lost, and whose first try began at that moment; most stay as they are.

    If its message was cancelled, purged, rescheduled or replaced since, the repeat changes nothing.
    """
    if call.script is None or call.script.name not in SENDS:
        return call
    # After EVALSHA, the hash, the number of keys and the keys.
    first = 3 + int(call.args[2]) + len(call.script.args)
    args = list(call.args)
    args[first + 1 :: 3] = [_repeated_due(due, began) for due in args[first + 1 :: 3]]
    return call._replace(args=tuple(args))


def repeated(message: Outgoing, began: float) -> Outgoing:
    """The message in a send that is repeated, as by `send_again`."""
    return message._replace(due=_repeated_due(message.due, began))


def _repeated_due(due: Any, began: float) -> RepeatedDue:
    # The first of its tries counts.
    return due if isinstance(due, RepeatedDue) else RepeatedDue(due, began)


def close_shard(
    layout: Layout, keys: ShardKeys, ids: Sequence[str] = (), *, dues: Sequence[str] = (), now_ms: Arg = ""
) -> Call[list[bool]]:
    """Closes a former shard of a layout to new messages for good. Returns True for each id that the shard knows.

    With their `dues` it also knows messages of repeated sends that were cancelled or purged since the first try.
    """

    def decode(reply: Any) -> list[bool]:
        return list(map(bool, numbers(reply, len(ids))))

    return script(
        *("close_shard", keys, list(zip_longest(ids, dues, fillvalue=""))),
        decode=decode,
        now_ms=now_ms,
        layout=layout.counts_text,
    )


class CancelOutcome(StrEnum):
    """What a cancel did."""

    CANCELLED = "cancelled"
    """It will not be delivered."""
    DELIVERED = "delivered"
    """A consumer has it now; no further delivery follows."""
    GARBAGE = "garbage"
    """Too late: it is a dead letter already. Nothing changed."""
    FINISHED = "finished"
    """Too late: it was acked, within the dedup window. Nothing changed."""
    UNKNOWN = "unknown"
    """There is no such message now."""


def cancel(keys: ShardKeys, ids: Sequence[str], *, sent_ms: Arg = "", now_ms: Arg = "") -> Call[list[CancelOutcome]]:
    """Cancels messages. Returns one outcome for each.

    With `sent_ms` only messages that were sent then; raises OutcomeUnknown if an id belongs to another message. Not
    repeatable, as the id may belong to another message by then.
    """
    call = script(
        "cancel",
        keys,
        [(id,) for id in ids],
        decode=lambda reply: [CancelOutcome(_outcome(outcome)) for outcome in rows(reply)],
        repeatable=False,
        now_ms=now_ms,
        sent_ms=sent_ms,
    )
    return in_parts(call, len(ids))


def _outcome(reply: bytes) -> str:
    if reply == b"another":
        raise OutcomeUnknown("the id belongs to another message now")
    return reply.decode()


class RescheduleOutcome(StrEnum):
    """What a reschedule did: if nothing, the state that prevented it."""

    RESCHEDULED = "rescheduled"
    READY = "ready"
    DELIVERED = "delivered"
    GARBAGE = "garbage"
    FINISHED = "finished"
    UNKNOWN = "unknown"


def reschedule(
    keys: ShardKeys, dues: Sequence[tuple[str, str]], *, sent_ms: Arg = "", now_ms: Arg = ""
) -> Call[list[tuple[RescheduleOutcome, int]]]:
    """Sets new due times, given as pairs of id and due. Returns for each its outcome and due time in ms.

    `sent_ms` and repeatability are as for `cancel`.
    """
    call = script(
        "reschedule",
        keys,
        dues,
        decode=lambda reply: [(RescheduleOutcome(_outcome(outcome)), due) for outcome, due in rows(reply)],
        repeatable=False,
        now_ms=now_ms,
        sent_ms=sent_ms,
    )
    return in_parts(call, len(dues))


class UpdateOutcome(StrEnum):
    """What an update did: if nothing, the state that prevented it."""

    UPDATED = "updated"
    LATE = "late"
    """It is ready, delivered, to be retried or dead."""
    FINISHED = "finished"
    UNKNOWN = "unknown"


def update(keys: ShardKeys, messages: Sequence[Outgoing], *, now_ms: Arg = "") -> Call[list[tuple[UpdateOutcome, int]]]:
    """Gives waiting messages other contents and due times. Returns for each its outcome and due time in ms."""
    call = script(
        "update",
        keys,
        messages,
        decode=lambda reply: [(UpdateOutcome(outcome.decode()), due) for outcome, due in rows(reply)],
        now_ms=now_ms,
    )
    return in_parts(call, len(messages))


class State(StrEnum):
    """The state of a message, or of one group's copy of it."""

    WAITING = "waiting"
    READY = "ready"
    DELIVERED = "delivered"
    RETRY = "retry"
    GARBAGE = "garbage"
    FINISHED = "finished"
    """Acked, within the dedup window of the caller's id."""
    EXPIRED = "expired"
    """Its time to live has passed, so it is not delivered; a manager soon makes it garbage, or deletes it."""
    CANCELLED = "cancelled"
    """Cancelled while a consumer had it, or deep in a backlog; forgotten once a consumer meets its entry."""


@dataclass(frozen=True, slots=True)
class CopyState:
    """One group's copy of a message."""

    group: str
    state: State
    at_ms: int | None
    """When the retry is due, or when the copy became garbage."""
    failure: Failure | None
    consumer: str | None = None
    """The consumer that has it, by the name at the server."""

    @property
    def attempts(self) -> int:
        """Begun deliveries: those that failed, and the one under way."""
        failed = self.failure.attempts if self.failure else 0
        return failed + (self.state is State.DELIVERED)


@dataclass(frozen=True, slots=True)
class Found:
    """The state of a message. `record` is None if it is finished, cancelled or unreadable."""

    id: str
    state: State
    record: Record | None
    copies: tuple[CopyState, ...] = ()

    @property
    def key(self) -> str | None:
        """Its key; None for none, or without a record."""
        return self.record.key if self.record else None

    @property
    def deaths(self) -> tuple[Death, ...]:
        """Of a dead letter: where, why and how often it has died, newest first."""
        return read_deaths(self.record.headers) if self.record else ()

    @property
    def due_ms(self) -> int | None:
        """When it is due next: its earliest retry, else its own due time."""
        retries = [c.at_ms for c in self.copies if c.state is State.RETRY and c.at_ms]
        return min(retries) if retries else self.record.due_ms if self.record else None

    @property
    def attempts(self) -> int:
        """Begun deliveries, in the group with the most."""
        return max((copy.attempts for copy in self.copies), default=0)


# The state of a message in several groups is that of the group nearest to a delivery.
_NEAREST = (State.DELIVERED, State.READY, State.RETRY, State.EXPIRED, State.GARBAGE)


def find(keys: ShardKeys, id: str, *, now_ms: Arg = "") -> Call[Found | None]:
    """The state of a message, None if it is unknown.

    More than 2,000 entries deep in a backlog a delivered message is reported as "ready".
    """
    return script("find", keys, decode=lambda reply: _found(id, reply), now_ms=now_ms, id=id)


def _found(id: str, reply: list[Any]) -> Found | None:
    data, waiting, finished, places, now_ms = reply
    if data is None:
        return Found(id, State.FINISHED, None) if finished else None
    if is_cancelled(data):
        return Found(id, State.CANCELLED, None)
    record, _ = read_record(data)
    is_expired = record is not None and record.expires_ms is not None and record.expires_ms <= now_ms
    if waiting:
        return Found(id, State.EXPIRED if is_expired else State.WAITING, record)
    copies = tuple(_copies(places, is_expired=is_expired))
    states = {copy.state for copy in copies}
    nearest = next((state for state in _NEAREST if state in states), State.EXPIRED if is_expired else State.READY)
    return Found(id, nearest, record, copies)


def _copies(places: list[Any], *, is_expired: bool) -> Iterator[CopyState]:
    for group, state, at_ms, failure, consumer in places:
        copy_state = State.READY if state == b"unknown" else State(state.decode())
        if is_expired and copy_state in {State.READY, State.RETRY}:
            copy_state = State.EXPIRED
        holder = text_of(consumer) or None
        yield CopyState(text_of(group), copy_state, at_ms or None, read_failure(failure), holder)
