"""Calls of the manager: promote, reclaim, trim, sweep, replay, purge, leave."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lisa_common.call import Call, script
from lisa_common.keys import TopicKeys, wake_channel
from lisa_common.policy import Policy
from lisa_common.protocol.consuming import new_seed
from lisa_common.scripts import Arg

__all__ = [
    "Promoted",
    "Reclaimed",
    "Swept",
    "Trimmed",
    "leave",
    "promote",
    "purge",
    "reclaim",
    "replay",
    "retire",
    "sweep",
    "trim",
]


@dataclass(frozen=True, slots=True)
class Promoted:
    """One round of promotion of one topic."""

    now_ms: int
    count: int
    next_due_ms: int | None
    more: bool
    """Whether a batch was full, so that more may be due."""


def promote(keys: TopicKeys, *, limit: int, now_ms: Arg = "") -> Call[Promoted]:
    """Moves what is due into ready."""
    return script(
        "promote",
        keys,
        decode=lambda r: Promoted(r[0], r[1], r[2] if r[2] >= 0 else None, bool(r[3])),
        now_ms=now_ms,
        limit=limit,
    )


@dataclass(frozen=True, slots=True)
class Reclaimed:
    """One bounded step of reclaim in one group."""

    cursor: str
    """Where to go on; "0-0" after the last step."""
    retry: int
    garbage: int
    gone: int
    released: int = 0
    """Given back, as they had not begun."""
    next_in_ms: int | None = None
    """When the first lease of a length of its own ends, of those that were looked at; None: there is none."""

    @property
    def count(self) -> int:
        """All deliveries that were taken back."""
        return self.retry + self.garbage + self.gone + self.released


def reclaim(
    keys: TopicKeys,
    group: str,
    policy: Policy,
    *,
    cursor: str,
    limit: int,
    visibility_ms: int | None = None,
    now_ms: Arg = "",
) -> Call[Reclaimed]:
    """Takes back deliveries whose lease has run out, by the policy's visibility timeout or another one."""
    return script(
        "reclaim",
        keys,
        decode=lambda r: Reclaimed(r[0].decode(), r[1], r[2], r[3], r[4], r[5] if r[5] >= 0 else None),
        now_ms=now_ms,
        group=group,
        channel=wake_channel(keys.prefix),
        topic=keys.tag,
        policy=policy.as_json,
        seed=new_seed(),
        visibility=policy.visibility_ms if visibility_ms is None else visibility_ms,
        cursor=cursor,
        limit=limit,
    )


@dataclass(frozen=True, slots=True)
class Trimmed:
    """One trim of one topic."""

    entries: int
    consumers: int
    entries_left: int
    pending: Mapping[str, int]
    """Deliveries that are not settled yet, by group."""


def trim(keys: TopicKeys, *, spent_ms: int) -> Call[Trimmed]:
    """Removes what every group has acked, and consumers that were away for longer than `spent_ms`."""

    def decode(reply: list[Any]) -> Trimmed:
        removed, consumers, left, pending = reply
        groups = {name.decode(): count for name, count in zip(pending[::2], pending[1::2], strict=True)}
        return Trimmed(removed, consumers, left, groups)

    return script("trim", keys, decode=decode, spent_ms=spent_ms)


@dataclass(frozen=True, slots=True)
class Swept:
    """One round of housekeeping by time of one topic."""

    expired: int
    forgotten: int
    aged_out: int
    more: bool
    next_in_ms: int | None
    """When there is more to do, as things stand; None: nothing in sight."""


def sweep(keys: TopicKeys, policy: Policy, *, limit: int, now_ms: Arg = "") -> Call[Swept]:
    """Expires messages, forgets finished ids, ages out garbage."""
    return script(
        "sweep",
        keys,
        decode=lambda r: Swept(r[0], r[1], r[2], bool(r[3]), r[4] if r[4] >= 0 else None),
        now_ms=now_ms,
        policy=policy.as_json,
        seed=new_seed(),
        limit=limit,
    )


def replay(keys: TopicKeys, copies: Sequence[str], *, now_ms: Arg = "") -> Call[list[str]]:
    """Makes dead letters ready again. Result: for each "replayed", "unknown", "no group" or "unreadable"."""
    return script(
        "replay",
        keys,
        [(copy,) for copy in copies],
        decode=lambda reply: [outcome.decode() for outcome in reply],
        now_ms=now_ms,
    )


def purge(keys: TopicKeys, copies: Sequence[str]) -> Call[int]:
    """Deletes dead letters for good. Result: how many were there."""
    return script("purge", keys, [(copy,) for copy in copies])


def leave(keys: TopicKeys, group: str, ids: Sequence[str]) -> Call[int]:
    """Ends a dropped group's copies of these messages. Result: how many."""
    return script("leave", keys, [(id,) for id in ids], group=group)


def retire(keys: TopicKeys, mark: Arg) -> Call[bool]:
    """Forgets that a topic was dropped, if its mark is still this one."""
    return script("retire", keys, decode=bool, topic=keys.topic, mark=mark)
