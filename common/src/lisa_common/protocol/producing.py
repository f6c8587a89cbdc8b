"""Calls of the producer: send, cancel, reschedule, find."""

import base64
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from lisa_common.errors import OutcomeUnknown
from lisa_common.model.failure import Failure, read_failure
from lisa_common.model.keys import ShardKeys, text_of, wake_channel
from lisa_common.model.record import Record, UnreadableRecord, is_husk, unpack_record
from lisa_common.protocol.call import Call, in_parts, script
from lisa_common.protocol.replies import numbers, rows
from lisa_common.protocol.scripts import Arg
from lisa_common.validation import GENERATED_SUFFIX

__all__ = [
    "CancelOutcome",
    "CopyState",
    "Found",
    "Outgoing",
    "RescheduleOutcome",
    "State",
    "cancel",
    "find",
    "new_ids",
    "reschedule",
    "send",
]

_RANDOM_BYTES, _RANDOM_CHARACTERS = 9, 12
_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
# In ascending order, as ids are to sort by the time in them. Without "-" and "/": an id may stand first in a command
# line, and after a group's name.
_ASCENDING = bytes.maketrans(_BASE64, b".0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz")


def new_ids(count: int) -> list[str]:
    """Ids nobody else will make, ascending: the time in ms, 72 random bits, and the mark of a generated id.

    Of 10⁹ messages, sent at 100,000 a second, the chance that any two share one is about 10⁻¹¹ (n² / 2⁷³ in each ms).
    The time is this machine's and decides nothing: it makes messages that are sent together neighbours in the server's
    sorted sets, which cost it half as much as places at random.
    """
    # The time makes 8 characters of which the first, 6 bits, changes in the year 2109 for the first time.
    time_ms = (time.time_ns() // 1_000_000).to_bytes(6, "big")
    text = base64.b64encode(time_ms + os.urandom(_RANDOM_BYTES * count)).translate(_ASCENDING).decode()
    tails = sorted(text[at : at + _RANDOM_CHARACTERS] for at in range(8, len(text), _RANDOM_CHARACTERS))
    return [text[1:8] + tail + GENERATED_SUFFIX for tail in tails]


class Outgoing(NamedTuple):
    """A checked message on its way, a row of the send script: `due` is "+ms" from now or an absolute time in ms."""

    id: str
    due: str
    content: bytes

    @property
    def generated(self) -> bool:
        """Whether Lisa made the id."""
        return self.id.endswith(GENERATED_SUFFIX)


def send(keys: ShardKeys, messages: Sequence[Outgoing], *, repeatable: bool, now_ms: Arg = "") -> Call[list[int]]:
    """Stores and schedules messages. Result: per message its due time in ms, 0 for a duplicate.

    Raises Resharded where the shard is closed.
    """
    channel = wake_channel(keys.prefix)
    return script(
        "send",
        keys,
        messages,
        decode=lambda reply: numbers(reply, len(messages)),
        repeatable=repeatable,
        now_ms=now_ms,
        channel=channel,
        topic=keys.tag,
    )


def close(keys: ShardKeys, ids: Sequence[str], *, now_ms: Arg = "") -> Call[list[bool]]:
    """Closes a shard to new messages, for good. Result: which of the ids it knows; others it never will."""

    def decode(reply: Any) -> list[bool]:
        return list(map(bool, numbers(reply, len(ids))))

    return script("close_shard", keys, [(id,) for id in ids], decode=decode, now_ms=now_ms)


class CancelOutcome(StrEnum):
    """What a cancel did."""

    CANCELLED = "cancelled"
    """It will not be delivered any more."""
    DELIVERED = "delivered"
    """A consumer has it now; no further delivery follows, whatever becomes of this one."""
    GARBAGE = "garbage"
    """Too late: it is a dead letter already. Nothing changed."""
    FINISHED = "finished"
    """Too late: it was acked, within the dedup window. Nothing changed."""
    UNKNOWN = "unknown"
    """There is no such message, or none any more."""


def cancel(keys: ShardKeys, ids: Sequence[str], *, sent_ms: Arg = "", now_ms: Arg = "") -> Call[list[CancelOutcome]]:
    """Cancels messages. Result: one outcome for each.

    With `sent_ms` only what was sent then; raises OutcomeUnknown where an id is another message's. Not repeatable, as
    it might be by then.
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
    return in_parts(call, len(ids), lambda done: cancel(keys, ids[done:], sent_ms=sent_ms, now_ms=now_ms))


def _outcome(reply: bytes) -> str:
    if reply == b"another":
        raise OutcomeUnknown("the id is another message's by now")
    return reply.decode()


class RescheduleOutcome(StrEnum):
    """What a reschedule did; where it did nothing, the state that stood against it."""

    RESCHEDULED = "rescheduled"
    READY = "ready"
    DELIVERED = "delivered"
    GARBAGE = "garbage"
    FINISHED = "finished"
    UNKNOWN = "unknown"


def reschedule(
    keys: ShardKeys, dues: Sequence[tuple[str, str]], *, sent_ms: Arg = "", now_ms: Arg = ""
) -> Call[list[tuple[RescheduleOutcome, int]]]:
    """Gives messages, as pairs of id and due, new due times. Result: outcome and due time in ms for each.

    `sent_ms` and repeating: as with `cancel`.
    """
    call = script(
        "reschedule",
        keys,
        dues,
        decode=lambda reply: [(RescheduleOutcome(_outcome(outcome)), due) for outcome, due in rows(reply)],
        repeatable=False,
        now_ms=now_ms,
        sent_ms=sent_ms,
        channel=wake_channel(keys.prefix),
        topic=keys.tag,
    )
    return in_parts(call, len(dues), lambda done: reschedule(keys, dues[done:], sent_ms=sent_ms, now_ms=now_ms))


class State(StrEnum):
    """Where a message, or one group's copy of it, stands."""

    WAITING = "waiting"
    READY = "ready"
    DELIVERED = "delivered"
    RETRY = "retry"
    GARBAGE = "garbage"
    FINISHED = "finished"
    """Acked, within the dedup window of an id that the caller chose."""
    CANCELLED = "cancelled"
    """Cancelled while a consumer had it, or deep in a backlog; gone as soon as that entry has been met."""


@dataclass(frozen=True, slots=True)
class CopyState:
    """One group's copy of a message."""

    group: str
    state: State
    at_ms: int | None
    """When the retry is due, or when the copy died."""
    failure: Failure | None

    @property
    def attempts(self) -> int:
        """Deliveries that have begun: those that failed, and the one under way."""
        failed = self.failure.attempts if self.failure else 0
        return failed + (self.state is State.DELIVERED)


@dataclass(frozen=True, slots=True)
class Found:
    """A message as it stands. `record` is None once it is finished or cancelled, or when it is unreadable."""

    id: str
    state: State
    record: Record | None
    copies: tuple[CopyState, ...] = ()

    @property
    def due_ms(self) -> int | None:
        """When it is due next: of its retries the earliest, else its own due time."""
        retries = [c.at_ms for c in self.copies if c.state is State.RETRY and c.at_ms]
        return min(retries) if retries else self.record.due_ms if self.record else None

    @property
    def attempts(self) -> int:
        """Deliveries that have begun, in the group that tried most."""
        return max((copy.attempts for copy in self.copies), default=0)


# The state of a message in several groups is that of the group nearest to a delivery.
_NEAREST = (State.DELIVERED, State.READY, State.RETRY, State.GARBAGE)


def find(keys: ShardKeys, id: str, *, now_ms: Arg = "") -> Call[Found | None]:
    """Where a message stands, None when it is not known.

    A ready message more than 2,000 entries deep in a backlog cannot be told from a delivered one: it is "ready".
    """
    return script("find", keys, decode=lambda reply: _found(id, reply), now_ms=now_ms, id=id)


def _found(id: str, reply: list[Any]) -> Found | None:
    data, waiting, finished, places = reply
    if data is None:
        return Found(id, State.FINISHED, None) if finished else None
    if is_husk(data):
        return Found(id, State.CANCELLED, None)
    try:
        record = unpack_record(data)
    except UnreadableRecord:
        record = None
    if waiting:
        return Found(id, State.WAITING, record)
    copies = tuple(_copies(places))
    states = {copy.state for copy in copies}
    nearest = next((state for state in _NEAREST if state in states), State.READY)
    return Found(id, nearest, record, copies)


def _copies(places: list[Any]) -> Iterator[CopyState]:
    for group, state, at_ms, failure in places:
        known = State.READY if state == b"unknown" else State(state.decode())
        yield CopyState(text_of(group), known, at_ms or None, read_failure(failure))
