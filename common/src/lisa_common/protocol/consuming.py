"""Calls of the consumer: join, attend, read, ack, follow, nack, release, extend, discard, deregister and the like.

And what it asks for when it settles a delivery, and what came of that.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple

from lisa_common.model.delivery import Entry, entries_of
from lisa_common.model.failure import read_failure, with_trace
from lisa_common.model.keys import ShardKeys, copy_of, wake_channel
from lisa_common.model.message import Outgoing
from lisa_common.model.policy import Policy
from lisa_common.protocol.call import Call, command, in_parts, script
from lisa_common.protocol.replies import byte_values, number, numbers, pairs, rows
from lisa_common.protocol.scripts import Arg

__all__ = [
    "AckOutcome",
    "Nack",
    "NackOutcome",
    "Postponed",
    "ReadShards",
    "ack",
    "attend",
    "deregister",
    "discard",
    "extend",
    "find_aborted",
    "follow",
    "join",
    "join_beside",
    "list_pending",
    "nack",
    "open_stream",
    "read",
    "release",
    "server_time",
    "shut_door",
]

_REASON_NACK, _REASON_REJECTED, _REASON_SNOOZED, _REASON_ISOLATED = "nack", "rejected", "snoozed", "isolated"


class AckOutcome(StrEnum):
    """What an ack did."""

    ACKED = "acked"
    LATE = "late"
    """The lease had run out, but no newer delivery had begun: the retry is withdrawn, and the message is done."""
    STALE = "stale"
    """A newer delivery exists, or the message is done, gone or aborted. Nothing changed."""
    DUPLICATE = "duplicate"
    """Acked, but the id of the message that follows is known: that message stands, and nothing was sent."""
    CANCELLED = "cancelled"
    """Acked, but the message was cancelled meanwhile: nothing follows it."""
    OWED = "owed"
    """Another group still owes the message, whose id the next one was to have. Nothing changed."""
    FULL = "full"
    """The topic has no room for the message that follows. Nothing changed."""
    RESHARDED = "resharded"
    """The topic was resharded, and the message that follows has another id. Nothing changed."""


@dataclass(frozen=True, slots=True)
class Nack:
    """A failed delivery. `delay_ms` None: the policy's backoff. Rejected: garbage at once.

    Snoozed: no attempt is spent. Isolated: the next delivery is alone.
    """

    entry: Entry
    error: str = ""
    delay_ms: int | None = None
    rejected: bool = False
    snoozed: bool = False
    isolated: bool = False
    trace: tuple[str, ...] = ()
    """The last frames of the traceback, the innermost last; see `lisa_common.model.failure`."""

    @property
    def reason(self) -> str:
        """Why, as it is stored with the failure."""
        named = {_REASON_REJECTED: self.rejected, _REASON_SNOOZED: self.snoozed, _REASON_ISOLATED: self.isolated}
        return next((reason for reason, is_so in named.items() if is_so), _REASON_NACK)


class Postponed(NamedTuple):
    """A delivery that is given back, while nothing of its topic becomes ready for so long."""

    delay_ms: int
    here: bool = False
    """True if the delay holds for its own worker only."""


class NackOutcome(StrEnum):
    """The outcome of a nack."""

    RETRY = "retry"
    GARBAGE = "garbage"
    DROPPED = "dropped"
    """Expired meanwhile, and the policy drops expired messages."""
    GONE = "gone"
    """Cancelled or done meanwhile."""
    STALE = "stale"
    """The lease had run out and the delivery was reclaimed. Nothing changed."""


MAX_ERROR_CHARACTERS = 2_000

_LAST = "18446744073709551615-18446744073709551614"
"""The last possible entry but one: a read after the very last is an error."""


def join(keys: ShardKeys, group: str, *, most: int = 0) -> Call[bool]:
    """Creates a missing group in one shard; `protocol.groups` covers all shards. Returns whether it was created.

    Raises TooManyGroups if there are `most` others already; 0 for no limit.
    """
    return script("join", keys, decode=bool, group=group, most=most)


def join_beside(keys: ShardKeys, group: str, known: Sequence[str], *, most: int = 0) -> Call[str | None]:
    """Creates a missing group, unless the only group there is not in `known`. Returns the name of that group, or None.

    With an empty `known` the group is created in any case. Raises TooManyGroups as `join` does.
    """

    def decode(reply: int | bytes) -> str | None:
        return reply.decode() if isinstance(reply, bytes) else None

    return script("join", keys, [(name,) for name in known], decode=decode, group=group, most=most)


def open_stream(keys: ShardKeys) -> Call[bool]:
    """Creates the missing stream of a shard, without groups. Returns whether it was created."""
    return script("join", keys, decode=bool, group="", most=0)


class ReadShards(list[ShardKeys]):
    """Shards, with what all reads of them have in common, made once."""

    def __init__(self, keys: Sequence[ShardKeys]) -> None:
        super().__init__(keys)
        self.by_stream = {k.of("ready").encode(): k for k in keys}
        self.streams = (*[k.of("ready") for k in keys], *repeat(">", len(self)))
        """The arguments after STREAMS of a read of new entries."""


def read(
    keys: Sequence[ShardKeys], group: str, consumer: str, *, limit: int, block_ms: int | None
) -> Call[list[tuple[ShardKeys, list[Entry]]]]:
    """Reads new entries of several shards; waits up to `block_ms` (None: not at all) while there are none.

    Returns pairs of shard and entries. Not repeatable: the entries of a lost reply stay pending.
    """
    shards = keys if isinstance(keys, ReadShards) else ReadShards(keys)
    # Numbers as text, as in `Script.head`.
    block = () if block_ms is None else ("BLOCK", str(max(1, block_ms)))
    return command(
        *("XREADGROUP", "GROUP", group, consumer, "COUNT", str(limit), *block, "STREAMS", *shards.streams),
        decode=partial(_entries_of_shards, shards),
        repeatable=False,
    )


def _entries_of_shards(shards: ReadShards, reply: list[Any] | None) -> list[tuple[ShardKeys, list[Entry]]]:
    return [(shards.by_stream[stream], entries_of(entries)) for stream, entries in rows(reply or [])]


def attend(keys: Sequence[ShardKeys], group: str, consumer: str) -> Call[None]:
    """Shows that a consumer is alive: it belongs to the group, and its idle time starts again. Raises NoGroup.

    Before Redis 7.2 only a read that returns something does so. This reads the consumer's pending entries after the
    last possible entry, so it returns nothing. An error of one shard leaves some of the others undone.
    """
    streams = [shard.of("ready") for shard in keys]
    return command(
        *("XREADGROUP", "GROUP", group, consumer, "COUNT", 1),
        *("STREAMS", *streams, *repeat(_LAST, len(streams))),
        decode=lambda _: None,
    )


def deregister(keys: ShardKeys, group: str, consumer: str) -> Call[bool]:
    """Removes a consumer that holds nothing. Returns False if it holds something. Raises NoGroup."""
    return script("deregister", keys, decode=bool, group=group, consumer=consumer)


def list_pending(
    keys: ShardKeys, group: str, consumer: str, *, after: str = "0-0", last: str = "+", limit: int
) -> Call[list[Entry]]:
    """Entries that a consumer has read and not settled, after one and up to another, at most `limit`, oldest first.

    An entry that the stream has lost meanwhile has no id.
    """
    return script(
        "list_pending",
        keys,
        decode=lambda reply: entries_of(rows(reply)),
        group=group,
        consumer=consumer,
        after=after,
        last=last,
        limit=limit,
    )


def _time_ms(reply: list[Any]) -> int:
    seconds, microseconds = reply
    return int(seconds) * 1000 + int(microseconds) // 1000


_TIME: Call[int] = command("TIME", decode=_time_ms)


def server_time() -> Call[int]:
    """The server's time in ms."""
    return _TIME


def ack(
    keys: ShardKeys, group: str, entries: Sequence[Entry], policy: Policy, *, now_ms: Arg = "", judge: bool = False
) -> Call[list[AckOutcome]]:
    """Acks deliveries. Returns one outcome for each.

    `judge` is for the rows that an earlier part has left, all of which look pending.
    """
    dues_ms = [e.due_ms for e in entries]
    # Messages that are settled together were often due together.
    dues_ms = dues_ms[:1] if dues_ms.count(dues_ms[0]) == len(dues_ms) else dues_ms
    call: Call[list[AckOutcome]] = script(
        "ack",
        keys,
        # Numbers as text, as in `Script.head`.
        [[e.entry for e in entries], [e.id or "" for e in entries], [str(due_ms) for due_ms in dues_ms]],
        repeatable=False,
        now_ms=now_ms,
        own_group=group,
        window_ms=policy.dedup_window_ms,
        judge=int(judge),
        many=len(entries),
        listeners=wake_channel(keys.prefix) if policy.max_in_flight or policy.max_in_flight_per_key else "",
        tag=keys.tag,
    )
    return in_parts(
        *(call, len(entries), lambda done: ack(keys, group, entries[done:], policy, now_ms=now_ms, judge=True)),
        split=_outcomes,
    )


def follow(
    keys: ShardKeys, group: str, followed: Sequence[tuple[Entry, Outgoing]], policy: Policy, *, now_ms: Arg = ""
) -> Call[list[AckOutcome]]:
    """Acks deliveries, each together with its follow-up message. Returns one outcome for each."""
    call = script(
        "follow",
        keys,
        [(entry.entry, entry.id or "", entry.due_ms, *message) for entry, message in followed],
        decode=lambda reply: [AckOutcome(outcome.decode()) for outcome in rows(reply)],
        repeatable=False,
        now_ms=now_ms,
        own_group=group,
        window_ms=policy.dedup_window_ms,
    )
    return in_parts(call, len(followed))


def _outcomes(reply: Any) -> tuple[int, list[AckOutcome]]:
    """How many deliveries an ack has done, and what it did to each."""
    done, exceptions = (reply, []) if isinstance(reply, int) else rows(reply, 2)
    outcomes = [AckOutcome.ACKED] * number(done)
    for position, outcome in pairs(exceptions):
        outcomes[position] = AckOutcome(outcome.decode())
    return done, outcomes


def nack(
    keys: ShardKeys, group: str, nacks: Sequence[Nack], policy: Policy, *, release: str = "", now_ms: Arg = ""
) -> Call[list[tuple[NackOutcome, int | None]]]:
    """Nacks deliveries of handlers of a release. Returns for each its outcome, and for a retry its due time in ms."""
    nack_rows: list[Sequence[Arg]] = [
        (
            n.entry.entry,
            n.entry.id or "",
            n.entry.attempt,
            n.entry.due_ms,
            "" if n.delay_ms is None else n.delay_ms,
            n.reason,
            with_trace(n.error[:MAX_ERROR_CHARACTERS], n.trace, release).encode("utf-8", "replace"),
        )
        for n in nacks
    ]
    call = script(
        "nack",
        keys,
        nack_rows,
        decode=lambda reply: [(NackOutcome(o.decode()), number(due) or None) for o, due in rows(reply)],
        repeatable=False,
        now_ms=now_ms,
        group=group,
        policy=policy.as_json,
        seed=new_seed(),
    )
    return in_parts(call, len(nacks))


def release(keys: ShardKeys, group: str, entries: Sequence[Entry], *, shut_ms: int = 0, now_ms: Arg = "") -> Call[int]:
    """Returns deliveries without spending an attempt. Returns how many.

    With `shut_ms` nothing becomes ready in the shard for so long.
    """
    call: Call[int] = script(
        "release",
        keys,
        _rows(entries),
        decode=number,
        now_ms=now_ms,
        group=group,
        shut_ms=shut_ms,
    )
    return in_parts(call, len(entries))


def shut_door(keys: ShardKeys, shut_ms: int, *, now_ms: Arg = "") -> Call[None]:
    """Lets nothing become ready in a served shard for so long, unless its door is shut for longer."""
    return script("shut_door", keys, decode=lambda _: None, now_ms=now_ms, shut_ms=shut_ms)


def extend(
    keys: ShardKeys,
    group: str,
    consumer: str,
    entries: Sequence[Entry],
    policy: Policy,
    *,
    lease_ms: int | None = None,
    lent: bool = False,
    now_ms: Arg = "",
) -> Call[list[bool]]:
    """Renews leases to `lease_ms` from now (None: the visibility timeout). Returns False for each lost lease.

    `lent` marks the deliveries as lent; see `lisa_common.protocol.lending`.
    """
    # Managers check four times within the visibility timeout; a shorter lease must wake them.
    is_short = lease_ms is not None and lease_ms < policy.visibility_ms
    return script(
        "extend",
        keys,
        [(e.entry,) for e in entries],
        decode=lambda reply: [bool(kept) for kept in numbers(reply, len(entries))],
        now_ms=now_ms,
        group=group,
        consumer=consumer,
        lease_ms=lease_ms or 0,
        channel=wake_channel(keys.prefix) if is_short else "",
        lent=int(lent),
    )


def find_aborted(keys: ShardKeys, group: str, entries: Sequence[Entry]) -> Call[list[bool]]:
    """Whether an operator has aborted each of these deliveries."""

    def decode(reply: Any) -> list[bool]:
        failures = map(read_failure, byte_values(reply, len(entries)))
        return [
            failure is not None and (failure.reason, failure.entry) == ("aborted", entry.entry)
            for entry, failure in zip(entries, failures, strict=True)
        ]

    return command("HMGET", keys.of("failures"), *(copy_of(group, e.id or "") for e in entries), decode=decode)


def discard(keys: ShardKeys, group: str, entries: Sequence[Entry], policy: Policy, *, now_ms: Arg = "") -> Call[int]:
    """Acks entries that must not be delivered, and settles expired messages. Returns how many had expired.

    Pass an entry of another group, or a foreign one, without its id: it has nothing to settle.
    """
    call: Call[int] = script(
        "discard",
        keys,
        _rows(entries),
        decode=number,
        now_ms=now_ms,
        group=group,
        policy=policy.as_json,
    )
    return in_parts(call, len(entries))


def new_seed() -> int:
    """A seed for a script's random numbers."""
    return random.getrandbits(31)


def _rows(entries: Iterable[Entry]) -> list[Sequence[Arg]]:
    return [(e.entry, e.id or "", e.attempt, e.due_ms) for e in entries]
