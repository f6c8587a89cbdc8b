"""Calls of the manager: abort, promote, reclaim, trim, sweep, replay, purge, end_copies, drop_group, set_door."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain, repeat
from typing import Any

from lisa_common.model.keys import ShardKeys, bytes_of, text_of
from lisa_common.model.policy import Policy
from lisa_common.model.scores import whole_ms
from lisa_common.protocol.call import Call, in_parts, script
from lisa_common.protocol.consuming import new_seed
from lisa_common.protocol.replies import number, numbers, pairs, rows
from lisa_common.protocol.scripts import Arg

__all__ = [
    "PAUSED",
    "TOO_MANY_IN_FLIGHT",
    "AbortOutcome",
    "Promoted",
    "Reclaimed",
    "Swept",
    "Trimmed",
    "abort",
    "drop_group",
    "end_copies",
    "forget_drop",
    "promote",
    "purge",
    "reclaim",
    "replay",
    "set_door",
    "sweep",
    "tidy_slots",
    "trim",
]


PAUSED = -1
TOO_MANY_IN_FLIGHT = -2


class AbortOutcome(StrEnum):
    """What an abort did."""

    ABORTED = "aborted"
    """Consumers had it: their deliveries have ended, and are garbage. Workers cancel their handlers."""
    IDLE = "idle"
    """No consumer has it: it waits, is ready, or is to be retried. Nothing changed; a cancel would end it."""
    CANCELLED = "cancelled"
    """It was cancelled before, and ends with its delivery, if it has one. Nothing changed."""
    GARBAGE = "garbage"
    """It is a dead letter already. Nothing changed."""
    FINISHED = "finished"
    """It was acked, within the dedup window. Nothing changed."""
    UNKNOWN = "unknown"
    """There is no such message now."""


def abort(keys: ShardKeys, id: str, *, now_ms: Arg = "") -> Call[AbortOutcome]:
    """Aborts the deliveries of a message. Not repeatable, as the message may have been delivered again by then."""
    return script(
        "abort",
        keys,
        decode=lambda reply: AbortOutcome(reply.decode()),
        repeatable=False,
        now_ms=now_ms,
        id=id,
    )


@dataclass(frozen=True, slots=True)
class Promoted:
    """The result of one promotion of one shard."""

    now_us: int
    """The server's time, in µs: a whole ms would have the next promotion up to 1 ms late."""
    count: int
    next_due_ms: int | None
    more: bool
    """Whether a batch was full, so that more may be due."""
    dues: Sequence[tuple[int, int]] = ()
    """When messages were due, in ms, and how many at each time, if asked for."""
    held: int = 0
    """Why due messages did not pass the topic's door: `PAUSED`, `TOO_MANY_IN_FLIGHT`, or the time to come again, in ms
    of the server's clock; 0: none was held back."""

    @property
    def now_ms(self) -> int:
        """The server's time, in ms."""
        return self.now_us // 1000

    @property
    def dues_ms(self) -> list[int]:
        """When each message was due."""
        return list(chain.from_iterable(repeat(due_ms, count) for due_ms, count in self.dues))


def promote(keys: ShardKeys, *, limit: int, now_ms: Arg = "", with_dues: bool = False) -> Call[Promoted]:
    """Moves due messages to the ready stream."""

    def decode(reply: Any) -> Promoted:
        counts = rows(reply)
        now_us, count, next_due, full, held = numbers(counts[:5], 5)
        times = [(whole_ms(due), number(count)) for due, count in pairs(counts[5:])]
        if sum(many for _, many in times) > 2 * limit:
            raise ValueError(f"a script must promote at most {limit} of each set")
        # A time before 1970 is not Lisa's.
        dues = tuple((due_ms, many) for due_ms, many in times if due_ms > 0)
        return Promoted(now_us, count, next_due if next_due >= 0 else None, bool(full), dues, held)

    return script("promote", keys, decode=decode, now_ms=now_ms, limit=limit, dues=int(with_dues))


@dataclass(frozen=True, slots=True)
class Reclaimed:
    """The result of one bounded step of reclaim in one group."""

    cursor: str
    """Start of the next step; "0-0" after the last one."""
    retry: int
    garbage: int
    gone: int
    released: int = 0
    """Deliveries that were returned, as they had not begun."""
    next_in_ms: int | None = None
    """Time until the first inspected lease of custom length ends; None: there is none."""
    expired: int = 0
    """Those of `garbage` that had expired; the others had no attempts left."""

    @property
    def count(self) -> int:
        """All reclaimed deliveries."""
        return sum(self.outcomes.values())

    @property
    def outcomes(self) -> dict[str, int]:
        """The number of deliveries by outcome."""
        return {"retry": self.retry, "garbage": self.garbage, "gone": self.gone, "unbegun": self.released}


def reclaim(
    keys: ShardKeys,
    group: str,
    policy: Policy,
    *,
    cursor: str,
    limit: int,
    visibility_ms: int | None = None,
    now_ms: Arg = "",
) -> Call[Reclaimed]:
    """Reclaims deliveries whose lease has run out, by the policy's visibility timeout or another one."""

    def decode(reply: Any) -> Reclaimed:
        following, *counts = rows(reply, 7)
        retry, garbage, gone, released, next_in, expired = numbers(counts, 6)
        next_in_ms = next_in if next_in >= 0 else None
        return Reclaimed(following.decode(), retry, garbage, gone, released, next_in_ms, expired)

    return script(
        "reclaim",
        keys,
        decode=decode,
        now_ms=now_ms,
        group=bytes_of(group),
        policy=policy.as_json,
        seed=new_seed(),
        visibility=policy.visibility_ms if visibility_ms is None else visibility_ms,
        cursor=cursor,
        limit=limit,
    )


@dataclass(frozen=True, slots=True)
class Trimmed:
    """The result of one trim of one shard."""

    entries: int
    consumers: int
    entries_left: int
    pending: Mapping[str, int]
    """Deliveries that are not settled yet, by group; names are as `text_of` returns them."""
    more: bool = False
    """Whether more could be removed now."""


def trim(keys: ShardKeys, *, spent_ms: int, silent_ms: int | None = None) -> Call[Trimmed]:
    """Removes entries that every group has acked, and consumers that were away for longer than `spent_ms`.

    Workers show that they are alive: they are removed after `silent_ms` (None: `spent_ms`).
    """

    def decode(reply: Any) -> Trimmed:
        *counts, pending, more = rows(reply, 5)
        removed, consumers, left = numbers(counts, 3)
        by_group = {text_of(name): number(count) for name, count in pairs(pending)}
        return Trimmed(removed, consumers, left, by_group, bool(more))

    return script(
        "trim", keys, decode=decode, spent_ms=spent_ms, silent_ms=spent_ms if silent_ms is None else silent_ms
    )


@dataclass(frozen=True, slots=True)
class Swept:
    """The result of one sweep of one shard."""

    expired: int
    forgotten: int
    aged_out: int
    more: bool
    next_in_ms: int | None
    """Time until there is more to do; None: nothing is scheduled."""


def sweep(keys: ShardKeys, policy: Policy, *, limit: int, now_ms: Arg = "") -> Call[Swept]:
    """Expires messages, forgets finished ids, ages out garbage: at most `limit` of each, but five times as many ids."""

    def decode(reply: Any) -> Swept:
        expired, forgotten, aged_out, full, next_in = numbers(reply, 5)
        return Swept(expired, forgotten, aged_out, bool(full), next_in if next_in >= 0 else None)

    return script(
        "sweep",
        keys,
        decode=decode,
        now_ms=now_ms,
        policy=policy.as_json,
        limit=limit,
    )


def replay(keys: ShardKeys, copies: Sequence[str], died_ms: Sequence[int] = (), *, now_ms: Arg = "") -> Call[list[str]]:
    """Makes dead letters ready again, or due where the topic has a door.

    `died_ms` holds when each died: one that has died again since is left, and is "unknown". Returns for each
    "replayed", "unknown", "no group" or "unreadable".
    """
    times: Sequence[Arg] = died_ms or [""] * len(copies)
    call = script(
        "replay",
        keys,
        [(bytes_of(copy), at) for copy, at in zip(copies, times, strict=True)],
        decode=lambda reply: [outcome.decode() for outcome in rows(reply)],
        now_ms=now_ms,
    )
    return in_parts(call, len(copies))


def purge(
    keys: ShardKeys, copies: Sequence[str], died_ms: Sequence[int] = (), *, window_ms: int = 0, now_ms: Arg = ""
) -> Call[int]:
    """Deletes dead letters for good. Returns how many existed.

    `died_ms` holds when each died: one that has died again since, after a replay, is left. With `window_ms` the ids
    that callers chose stay known for so long, as after an ack.
    """
    times: Sequence[Arg] = died_ms or [""] * len(copies)
    letters = [(bytes_of(copy), at) for copy, at in zip(copies, times, strict=True)]
    call: Call[int] = script("purge", keys, letters, decode=number, window=window_ms, now_ms=now_ms)
    return in_parts(call, len(copies))


def end_copies(keys: ShardKeys, group: str, ids: Sequence[str], *, gone: bool = True) -> Call[tuple[int, int]]:
    """Ends a group's copies of these messages; with `gone`, only if the group does not exist.

    Returns how many of the ids are done, from the first on, and how many copies were ended.
    """
    rows_of = [(bytes_of(id),) for id in ids]
    return script(
        "end_copies",
        keys,
        rows_of,
        decode=_leave,
        group=bytes_of(group),
        gone=int(gone),
    )


def drop_group(keys: ShardKeys, group: str, *, limit: int, destroy: bool) -> Call[tuple[str, int]]:
    """Takes one step in dropping a group: ends its copies by up to `limit` entries; the last may `destroy` it.

    With a limit of 0 it ends no copies. Returns "more", "settled" (it owes nothing by its entries, and stays), "done",
    "gone" (the group did not exist) or "owes" (nothing changed, as the limit is 0), and how many copies were ended.
    """
    return script(
        *("drop_group", keys),
        decode=_disband,
        group=bytes_of(group),
        limit=limit,
        destroy=int(destroy),
    )


def _leave(reply: Any) -> tuple[int, int]:
    done, ended = numbers(reply, 2)
    return done, ended


def _disband(reply: Any) -> tuple[str, int]:
    outcome, ended = rows(reply, 2)
    return outcome.decode(), number(ended)


def set_door(keys: ShardKeys, before: str, after: str) -> Call[bool]:
    """Sets the limits of a shard, as `limits_of` writes them. Returns False where they were not `before`."""
    return script("set_door", keys, decode=bool, before=bytes_of(before), after=after)


def tidy_slots(keys: ShardKeys, cursor: bytes, *, mend: bool) -> Call[tuple[bytes, int]]:
    """Looks at a page of the slots of keys; `mend` also mends them. Returns the next cursor, and how many were wrong.

    The cursor is empty to begin, and after the last page.
    """
    return script("tidy_slots", keys, decode=_page, cursor=cursor, mend=int(mend))


def _page(reply: Any) -> tuple[bytes, int]:
    cursor, count = rows(reply, 2)
    return cursor, number(count)


def forget_drop(keys: ShardKeys, mark: Arg) -> Call[bool]:
    """Forgets that a topic was dropped, if its mark is unchanged."""
    return script("forget_drop", keys, decode=bool, topic=keys.topic, mark=mark)
