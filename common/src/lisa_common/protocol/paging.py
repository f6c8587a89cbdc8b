"""Calls that read a topic's waiting, retry and garbage messages page by page, in ranges that can be read in parallel.

Messages may move meanwhile: a message that does not move is read exactly once.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, NamedTuple

from lisa_common.model.failure import Failure, read_failure
from lisa_common.model.keys import ShardKeys, bytes_of, split_copy, text_of
from lisa_common.model.record import Record, read_record
from lisa_common.model.scores import due_ms_of
from lisa_common.protocol.call import Call, Flow, command, script
from lisa_common.protocol.producing import State

__all__ = ["END", "PAGED", "START", "Listed", "Page", "Point", "list_messages", "split"]

PAGED = (State.WAITING, State.RETRY, State.GARBAGE)
"""The states that are stored as sets in order of time."""


class Point(NamedTuple):
    """A place in the order of a set: a score, and a member among those of that score. It need not exist."""

    score: float
    member: bytes = b""

    def successor(self) -> "Point":
        """The next place after this one."""
        return Point(self.score, self.member + b"\0")


START, END = Point(-inf), Point(inf)


@dataclass(frozen=True, slots=True)
class Listed:
    """A message in one of the sets, or a group's copy of it."""

    state: State
    group: str | None
    id: str
    at_ms: int
    """When it is due, or when it died."""
    record: Record | None
    """None if it is missing, unreadable or cancelled."""
    failure: Failure | None
    unreadable: str = ""
    """The error of an unreadable record."""
    member: str = ""
    """The message as the set names it: its id, or group and id."""


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a set, and the start of the next page; None at the end."""

    messages: list[Listed]
    rest: Point | None
    behind: Point | None = None
    """The place behind the last message that was examined, if any; None also where `end` was reached."""


def list_messages(
    keys: ShardKeys,
    state: State,
    start: Point,
    end: Point,
    *,
    limit: int = 1_000,
    max_bytes: int = 2 * 1024 * 1024,
    group: str = "",
    reason: str = "",
    bodies: bool = True,
    newest_first: bool = False,
) -> Call[Page]:
    """The messages from `start`, included, up to `end`, excluded; up to `limit` are examined, so a page may be empty.

    With `newest_first` those from `start`, excluded, back to `end`, included. With a group, only its copies; with a
    reason, only copies that failed for it. Without bodies, records have empty ones.
    """
    return script(
        "list_messages",
        keys,
        decode=partial(_page, state, newest_first),
        state=state.value,
        score=repr(start.score),
        member=start.member,
        end_score=repr(end.score),
        end_member=end.member,
        limit=limit,
        max_bytes=max_bytes,
        group=bytes_of(group),
        reason=reason,
        body=int(bodies),
        newest=int(newest_first),
    )


def _page(state: State, newest_first: bool, reply: Any) -> Page:  # noqa: FBT001 - bound by position
    done, flat, member, score = reply
    messages = [_listed(state, *row) for row in zip(*[iter(flat)] * 4, strict=True)]
    last = Point(float(score), member) if score else None
    behind = last.successor() if last and not newest_first else last
    return Page(messages, None if done else behind, behind)


def _listed(state: State, member: bytes, score: bytes, data: bytes | None, failure: bytes | None) -> Listed:
    name = text_of(member)
    group, id = (None, name) if state is State.WAITING else split_copy(name)
    record, unreadable = read_record(data)
    return Listed(state, group or None, id, due_ms_of(score), record, read_failure(failure), unreadable, name)


def split(keys: ShardKeys, state: State, start: Point, end: Point, size: int) -> Flow[list[tuple[Point, Point]]]:
    """Cuts the messages between two points into ranges of about `size` messages; at least one range."""
    name = keys.of(state.value)
    first, last = yield [
        command("ZCOUNT", name, "-inf", f"({start.score!r}"),
        command("ZCOUNT", name, "-inf", repr(end.score)),
    ]
    cuts: Sequence[Any] = ()
    if ranks := range(first + size, last, size):
        cuts = yield [command("ZRANGE", name, rank, rank, "WITHSCORES") for rank in ranks]
    inner = (Point(float(cut[1]), cut[0]) for cut in cuts if cut)
    # Points that moved between the two calls may lie outside, or out of order.
    ordered = sorted({point for point in inner if start < point < end})
    return list(itertools.pairwise((start, *ordered, end)))
