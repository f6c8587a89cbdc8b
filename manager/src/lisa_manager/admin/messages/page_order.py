"""The segments of a list of messages, in the order in which it reads them, and its cursors."""

import base64
import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from lisa_common.errors import InvalidInput, UnknownGroup
from lisa_common.model.keys import ShardKeys
from lisa_common.model.scores import PARKED_MS
from lisa_common.model.sharding import Layout
from lisa_common.protocol.call import Flow
from lisa_common.protocol.paging import END, PAGED, START, Point
from lisa_common.protocol.producing import State
from lisa_manager.queries import GroupInfo, groups

__all__ = ["PageSegment", "Place", "read_cursor", "remaining", "segments_of", "write_cursor"]

_ENTRY = re.compile(r"[0-9]{1,20}-[0-9]{1,20}")
_MOST_IN_ENTRY = 2**64
_PARKED, _BEYOND = Point(PARKED_MS), Point(2 * PARKED_MS)
_WHOLE = (START, END)
_SPANS = ((_PARKED, _BEYOND), (START, _PARKED), (_BEYOND, END))
"""Parked messages first: they were due before all others, though their scores are later."""
_SPLIT = "split"

Place = list[str]
"""Where a segment continues: score and member of a set, an entry of a stream, or nothing for its beginning. Where a set
is split into spans, a mark follows."""
_Order = tuple[int, int, str]


class PageSegment(NamedTuple):
    """One ordered part of the list: a shard, a group of a shard, or a range of times in a shard."""

    keys: ShardKeys
    group: GroupInfo | None = None
    span: tuple[Point, Point] = _WHOLE

    @property
    def order(self) -> _Order:
        """Its place in the topic. Shards of a later reshard come last, so a cursor does not miss them."""
        shard, _, number = self.keys.shard.partition(".")
        return int(number or 0), int(shard or 0), self.group.name if self.group else ""

    @property
    def first(self) -> Place:
        """Where it begins."""
        return [] if self.span == _WHOLE else self.place(self.span[0])

    def place(self, point: Point) -> Place:
        """A point of a set as a place."""
        return [repr(point.score), point.member.decode("latin-1"), *([] if self.span == _WHOLE else [_SPLIT])]

    def start(self, place: Place) -> Point:
        """A place in a set as a point."""
        if not place:
            return self.span[0]
        point = Point(float(place[0]), place[1].encode("latin-1"))
        # The limit is gone: what was listed first, as it was parked, is now the end of the only segment.
        is_before_all = self.span == _WHOLE and place[2:] == [_SPLIT] and point >= _PARKED
        return START if is_before_all else point

    def holds(self, place: Place) -> bool:
        """Whether a place of its group or shard is part of it."""
        return self.span == _WHOLE or self.span[0] <= self.start(place) < self.span[1]


def segments_of(layout: Layout, state: State, group: str | None) -> Flow[list[PageSegment]]:
    """The segments of a state, in order. Raises UnknownGroup."""
    if state in PAGED:
        shards = sorted(map(PageSegment, layout.served), key=lambda segment: segment.order)
        if state is State.GARBAGE or layout.policy.max_in_flight_per_key is None:
            return shards
        return [segment._replace(span=span) for segment in shards for span in _SPANS]
    infos: list[list[GroupInfo]] = yield [groups(keys) for keys in layout.served]
    segments = [
        PageSegment(keys, info) for keys, of_shard in zip(layout.served, infos, strict=True) for info in of_shard
    ]
    if state is State.READY:
        segments += [PageSegment(keys) for keys, of_shard in zip(layout.served, infos, strict=True) if not of_shard]
    if group and not any(segment.group and segment.group.name == group for segment in segments):
        raise UnknownGroup(layout.topic, group)
    selected = [
        segment for segment in segments if group is None or (segment.group.name if segment.group else "") == group
    ]
    return sorted(selected, key=lambda segment: segment.order)


def remaining(segments: Sequence[PageSegment], cursor: str | None, state: State) -> list[tuple[PageSegment, Place]]:
    """The segments from a cursor on, and where to begin in each. Raises InvalidInput."""
    every = [(segment, segment.first) for segment in segments]
    if cursor is None:
        return every
    order, place = read_cursor(cursor, state)
    for at, segment in enumerate(segments):
        if segment.order > order:
            return every[at:]
        if segment.order == order and segment.holds(place):
            return [(segment, place or segment.first), *every[at + 1 :]]
    return []


def write_cursor(state: State, segment: PageSegment, place: Place) -> str:
    """A cursor of a list."""
    document = json.dumps([state.value, *segment.order, *place], separators=(",", ":"))
    return base64.urlsafe_b64encode(document.encode()).decode().rstrip("=")


def read_cursor(cursor: str, state: State) -> tuple[_Order, Place]:
    """The segment of a cursor, and the place there. Raises InvalidInput."""
    try:
        values = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        return _checked(state, *values)
    except (ValueError, TypeError, RecursionError):
        raise InvalidInput("cursor", cursor, f"the cursor of a page of {state} messages") from None


def _checked(state: State, name: Any, *values: Any) -> tuple[_Order, Place]:
    number, shard, group, *place = values
    is_text = all(isinstance(each, str) for each in (group, *place))
    if not (name == state and type(number) is type(shard) is int and is_text):
        raise ValueError(values)
    if place and state in PAGED:
        score, member, *split = place
        if split not in ([], [_SPLIT]) or not float(score) < float("inf"):
            raise ValueError(score)
        member.encode("latin-1")
    elif place:
        [entry] = place
        if not _ENTRY.fullmatch(entry) or any(int(part) >= _MOST_IN_ENTRY for part in entry.split("-")):
            raise ValueError(entry)
    return (number, shard, group), place
