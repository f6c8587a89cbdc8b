"""Calls of the consumer: join, read, held, fetch, mark, ack, nack, release, extend, pass."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any

from lisa_common.call import Call, command, script
from lisa_common.delivery import Entry, entry_of
from lisa_common.errors import OF_THE_SERVER
from lisa_common.keys import TopicKeys, wake_channel
from lisa_common.policy import Policy
from lisa_common.scripts import Arg
from lisa_common.transport.server import lisa_error

__all__ = [
    "MARKING",
    "AckOutcome",
    "Begun",
    "Nack",
    "NackOutcome",
    "ack",
    "extend",
    "fetch",
    "held",
    "join",
    "mark",
    "nack",
    "pass_over",
    "read",
    "release",
    "server_time",
]

MAX_ERROR_CHARACTERS = 2_000
_REASON_NACK, _REASON_REJECTED = "nack", "rejected"


def join(keys: TopicKeys, group: str) -> Call[bool]:
    """Makes the group if need be. Result: whether it was made."""
    return script("join", keys, decode=bool, group=group)


def read(
    keys: Sequence[TopicKeys], group: str, consumer: str, *, limit: int, block_ms: int | None
) -> Call[list[tuple[TopicKeys, list[Entry]]]]:
    """Reads new entries of several shards; waits up to `block_ms` (None: not at all) while there are none.

    Result: pairs of shard and entries. Not repeatable: a reply that is lost leaves its entries pending.
    """
    shards = {k.of("ready"): k for k in keys}
    block: tuple[Arg, ...] = () if block_ms is None else ("BLOCK", max(1, block_ms))

    def decode(reply: list[Any] | None) -> list[tuple[TopicKeys, list[Entry]]]:
        return [
            (shards[stream.decode()], [entry_of(entry, values) for entry, values in entries])
            for stream, entries in reply or ()
        ]

    return command(
        *("XREADGROUP", "GROUP", group, consumer, "COUNT", limit, *block),
        *("STREAMS", *shards, *(">" for _ in shards)),
        decode=decode,
        repeatable=False,
    )


def held(
    keys: TopicKeys, group: str, consumer: str, *, after: str = "0-0", last: str = "+", limit: int
) -> Call[list[Entry]]:
    """What a consumer has read and not settled, beyond one entry and up to another, at most `limit`, oldest first.

    An entry that the stream has lost meanwhile is without an id.
    """
    return script(
        "held",
        keys,
        decode=lambda reply: [entry_of(entry, values) for entry, values in reply],
        group=group,
        consumer=consumer,
        after=after,
        last=last,
        limit=limit,
    )


def fetch(keys: TopicKeys, ids: Sequence[str]) -> Call[list[bytes | None] | str]:
    """The records of messages, None for each that has none; or, as text, what is wrong with all of this topic's."""

    def decode(reply: Any) -> list[bytes | None] | str:
        if not isinstance(reply, Exception):
            records: list[bytes | None] = reply
            return records
        error = lisa_error(reply)
        if isinstance(error, OF_THE_SERVER):
            raise error
        return str(error)

    return command("HMGET", keys.of("messages"), *ids, decode=decode, takes_errors=True)


def server_time() -> Call[int]:
    """The server's time in ms."""
    return command("TIME", decode=_time_ms)


def _time_ms(reply: list[Any]) -> int:
    return int(reply[0]) * 1000 + int(reply[1]) // 1000


MARKING = "~"
"""What the name of a consumer ends in that marks what has begun; no name that a caller gives may."""


class Begun(IntEnum):
    """Whether a delivery has begun, as the server's counter of its deliveries says; see `lua/include/lease.lua`."""

    NOT = 1
    """What a read leaves. If the lease of a worker's runs out, no attempt is spent; of a plain consumer one is."""
    YES = 2
    """It has, and with it all that the consumer holds of entries before it, but those that are to run alone."""
    ALONE = 4
    """It has, and is to run alone."""
    BESIDE = 3
    """It was to run alone, and others run beside it: if its lease runs out, that may be their doing."""


def mark(keys: TopicKeys, group: str, consumer: str, entries: Sequence[str], begun: Begun) -> Call[bool]:
    """Marks deliveries of this consumer, and renews their leases to the visibility timeout. Result: whether it could.

    Leaves alone what is no longer pending.
    """
    return command(
        *("XCLAIM", keys.of("ready"), group, consumer, 0),
        *entries,
        *("RETRYCOUNT", int(begun), "JUSTID"),
        decode=lambda reply: not isinstance(reply, Exception),
        takes_errors=True,
    )


class AckOutcome(StrEnum):
    """What an ack did."""

    ACKED = "acked"
    LATE = "late"
    """The lease had run out, but no newer delivery had begun: the retry is withdrawn, the message is done."""
    STALE = "stale"
    """A newer delivery exists, or the message is done or gone. Nothing changed."""


def ack(
    keys: TopicKeys, group: str, entries: Sequence[Entry], policy: Policy, *, now_ms: Arg = ""
) -> Call[list[AckOutcome]]:
    """Acks deliveries. Result: one outcome for each."""

    def decode(exceptions: list[Any]) -> list[AckOutcome]:
        outcomes = [AckOutcome.ACKED] * len(entries)
        for position, outcome in zip(*[iter(exceptions)] * 2, strict=True):
            outcomes[position] = AckOutcome(outcome.decode())
        return outcomes

    return script(
        "ack",
        keys,
        [(e.entry, e.id or "", e.due_ms) for e in entries],
        decode=decode,
        repeatable=False,
        now_ms=now_ms,
        group=group,
        window_ms=policy.dedup_window_ms,
    )


@dataclass(frozen=True, slots=True)
class Nack:
    """A delivery to give up. `delay_ms` None: the policy's backoff. Rejected: garbage at once."""

    entry: Entry
    error: str = ""
    delay_ms: int | None = None
    rejected: bool = False


class NackOutcome(StrEnum):
    """What became of a delivery that was given up."""

    RETRY = "retry"
    GARBAGE = "garbage"
    DROPPED = "dropped"
    """Expired meanwhile, and the policy drops what expires."""
    GONE = "gone"
    """Cancelled meanwhile, or done."""
    STALE = "stale"
    """The lease had run out and the delivery was reclaimed. Nothing changed."""


def nack(
    keys: TopicKeys, group: str, nacks: Sequence[Nack], policy: Policy, *, now_ms: Arg = ""
) -> Call[list[tuple[NackOutcome, int | None]]]:
    """Gives up deliveries. Result: outcome, and for a retry its due time in ms, for each."""
    rows: list[Sequence[Arg]] = [
        (
            n.entry.entry,
            n.entry.id or "",
            n.entry.attempt,
            n.entry.due_ms,
            "" if n.delay_ms is None else n.delay_ms,
            _REASON_REJECTED if n.rejected else _REASON_NACK,
            n.error[:MAX_ERROR_CHARACTERS].encode("utf-8", "replace"),
        )
        for n in nacks
    ]
    return script(
        "nack",
        keys,
        rows,
        decode=lambda reply: [(NackOutcome(o.decode()), due or None) for o, due in reply],
        repeatable=False,
        now_ms=now_ms,
        group=group,
        channel=wake_channel(keys.prefix),
        topic=keys.tag,
        policy=policy.as_json,
        seed=new_seed(),
    )


def release(keys: TopicKeys, group: str, entries: Iterable[Entry], *, now_ms: Arg = "") -> Call[int]:
    """Gives deliveries back that have not begun, without spending an attempt. Result: how many."""
    return script("release", keys, _rows(entries), now_ms=now_ms, group=group)


def extend(
    keys: TopicKeys,
    group: str,
    consumer: str,
    entries: Sequence[Entry],
    policy: Policy,
    *,
    lease_ms: int | None = None,
    now_ms: Arg = "",
) -> Call[list[bool]]:
    """Renews leases to `lease_ms` from now (None: the visibility timeout). Result: False for each that is lost."""
    # Managers look four times within the visibility timeout.
    is_short = lease_ms is not None and lease_ms < policy.visibility_ms
    return script(
        "extend",
        keys,
        [(e.entry,) for e in entries],
        decode=lambda reply: [bool(kept) for kept in reply],
        now_ms=now_ms,
        group=group,
        consumer=consumer,
        lease_ms=lease_ms or 0,
        channel=wake_channel(keys.prefix) if is_short else "",
        topic=keys.tag,
    )


def pass_over(keys: TopicKeys, group: str, entries: Iterable[Entry], policy: Policy, *, now_ms: Arg = "") -> Call[int]:
    """Acks entries that must not be delivered, and settles what expired. Result: how many had expired.

    An entry of another group, or none of ours, is named without its id: there is nothing to settle.
    """
    return script(
        "pass",
        keys,
        _rows(entries),
        now_ms=now_ms,
        group=group,
        policy=policy.as_json,
        seed=new_seed(),
    )


def new_seed() -> int:
    """A seed for a script's random numbers."""
    return random.getrandbits(31)


def _rows(entries: Iterable[Entry]) -> list[Sequence[Arg]]:
    return [(e.entry, e.id or "", e.attempt, e.due_ms) for e in entries]
