"""The tables of `lisa-manager status`: unhealthy topics first, and no more rows than fit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from lisa_common.cli import Column, shown, shown_duration
from lisa_common.cli.output import new_table
from lisa_manager import BUCKETS, TopicStatus

__all__ = ["DUE_IN", "Listing", "Rates", "fit", "listings", "problem_of", "unhealthy_first"]

_NUMBERS = ("waiting", "ready", "delivered", "retry", "garbage")
_COLUMNS = (Column("topic"), *(Column(name, number=True) for name in (*_NUMBERS, "late")))
DUE_IN = (*(name for name, _ in BUCKETS), "beyond")
_HISTOGRAM = (Column("waiting"), *(Column(name, number=True) for name in DUE_IN))
_GROUPS = (
    Column("topic"),
    Column("group"),
    *(Column(name, number=True) for name in ("ready", "delivered", "consumers")),
)
_RATES = (Column("in/s", number=True), Column("out/s", number=True), Column("problem"))
_LIMITS = (Column("topic"), Column("limits"))
_ENDS = (*map(Column, ("topic", "dead letters to", "delay", "expires after", "unused for")),)

_LATE_MS = 30_000
"""A topic is late from this age on: a working manager and idle workers need less than a second."""

_VERY_LATE_MS = 300_000


@dataclass(frozen=True, slots=True)
class Rates:
    """Entries a second; None where two readings give no rate."""

    added: Mapping[str, float | None] = field(default_factory=dict)
    """How many became ready, by topic."""
    read: Mapping[tuple[str, str], float | None] = field(default_factory=dict)
    """How many were delivered, by topic and group."""

    def out(self, topic: str) -> float | None:
        """Deliveries to all groups of a topic together."""
        counts = [rate for (name, _), rate in self.read.items() if name == topic and rate is not None]
        return sum(counts) if counts else None


@dataclass(frozen=True, slots=True)
class Listing:
    """A table, and how many of its rows are left out."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    more: int = 0

    def table(self, width: int) -> Table:
        """The table for a screen of so many columns, each row on one line. Names are cut; numbers are left out."""
        cells = [[column.title, *(row[at] for row in self.rows)] for at, column in enumerate(self.columns)]
        widths = [max(map(cell_len, of_column)) for of_column in cells]
        names = [at for at, column in enumerate(self.columns) if not column.number]
        left = width - sum(_SHORTEST + _GAP for _ in names)
        kept = []
        for at, size in enumerate(widths):
            if at not in names:
                left -= size + _GAP
            if at in names or left >= 0:
                kept.append(at)
        rooms = _share(max(left, 0) + _SHORTEST * len(names), [widths[at] for at in names])
        for at, room in zip(names, rooms, strict=True):
            widths[at] = max(room, _SHORTEST)
        rows = [[_shorten(row[at], widths[at]) for at in kept] for row in self.rows]
        return new_table([self.columns[at] for at in kept], rows, one_line=True)


_GAP = 3
"""Spaces beside each column."""

_SHORTEST = 4
"""The length of a cut name on the narrowest screen."""


def _shorten(cell: str, width: int) -> str:
    text = Text(shown(cell))
    text.truncate(width, overflow="ellipsis")
    return text.plain


def problem_of(status: TopicStatus) -> str:
    """The problems of a topic, the worst first; "" for none."""
    problems = ["cannot be read"] if status.damage else []
    problems += ["late"] if status.late_ms >= _LATE_MS else []
    problems += [f"{group.group}: no consumers" for group in status.groups if group.ready and not group.consumers]
    problems += ["garbage"] if status.garbage else []
    return ", ".join(problems)


def unhealthy_first(statuses: Sequence[TopicStatus]) -> list[TopicStatus]:
    """First topics that cannot be read, then late ones, then those without readers, then those with garbage."""
    return sorted(statuses, key=_rank)


def _rank(status: TopicStatus) -> tuple[int, int, str]:
    unread = any(group.ready and not group.consumers for group in status.groups)
    if status.damage:
        return 0, 0, status.topic
    if status.late_ms >= _VERY_LATE_MS:
        return 1, -status.late_ms, status.topic
    if status.late_ms >= _LATE_MS or unread:
        return 2, -status.late_ms, status.topic
    # By name, so that rows keep their places.
    return 3 if status.garbage else 4, 0, status.topic


def listings(statuses: Sequence[TopicStatus], rates: Rates | None = None) -> list[Listing]:
    """The tables that have rows: topics, when waiting messages are due, groups. With rates and problems, if given."""
    topics = [
        [s.topic, *(f"{getattr(s, n):,}" for n in _NUMBERS), shown_duration(s.late_ms), *_of_topic(s, rates)]
        for s in statuses
    ]
    waiting = [[s.topic, *(f"{count:,}" if count else "." for count in s.due_in)] for s in statuses if s.waiting]
    groups = [
        [s.topic, group.group, f"{group.ready:,}", f"{group.delivered:,}", f"{group.consumers:,}"]
        + ([] if rates is None else [_shown(rates.read.get((s.topic, group.group)))])
        for s in statuses
        for group in s.groups
    ]
    with_rates = (_COLUMNS, _GROUPS) if rates is None else ((*_COLUMNS, *_RATES), (*_GROUPS, _RATES[1]))
    ends = [_ends_row(s) for s in statuses if s.dead_letter_topic or s.expire_idle_ms]
    limits = [[s.topic, words] for s in statuses if (words := _limits(s))]
    tables = ((with_rates[0], topics), (_HISTOGRAM, waiting), (with_rates[1], groups), (_LIMITS, limits), (_ENDS, ends))
    return [Listing(columns, rows) for columns, rows in tables if rows]


def _limits(status: TopicStatus) -> str:
    shut = f"shut by a handler for {shown_duration(status.shut_ms)}" if status.shut_ms else ""
    return ", ".join(filter(None, (status.limits, shut)))


def _ends_row(status: TopicStatus) -> list[str]:
    after = shown_duration(status.dead_letter_delay_ms) if status.dead_letter_topic else "-"
    times = ("-" if t is None else shown_duration(t) for t in (status.expire_idle_ms, status.unused_ms))
    return [status.topic, status.dead_letter_topic or "-", after, *times]


def _of_topic(status: TopicStatus, rates: Rates | None) -> list[str]:
    if rates is None:
        return []
    return [_shown(rates.added.get(status.topic)), _shown(rates.out(status.topic)), problem_of(status)]


def _shown(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:,.0f}" if rate >= 10 or not rate else f"{rate:.1f}"  # noqa: PLR2004


_FRAME = 4
"""Lines of a table besides its rows: the titles, a rule, and an empty line above and below."""

_LEAST = 2
"""The least lines for the rows of a table: one row, and the number of hidden ones."""


def fit(found: Sequence[Listing], height: int) -> list[Listing]:
    """Cuts tables to so many lines in all, in fair shares; the last ones go first where there is no room for all."""
    kept = list(found[: max(1, height // (_FRAME + _LEAST))])
    rooms = _share(height - _FRAME * len(kept), [len(listing.rows) for listing in kept])
    return [_cut(listing, max(room, _LEAST)) for listing, room in zip(kept, rooms, strict=True)]


def _share(lines: int, wanted: Sequence[int]) -> list[int]:
    """Splits lines evenly; lines that a table does not need go to the others."""
    rooms = [0] * len(wanted)
    for place, (count, at) in enumerate(sorted((count, at) for at, count in enumerate(wanted))):
        rooms[at] = min(count, max(0, lines) // (len(wanted) - place))
        lines -= rooms[at]
    return rooms


def _cut(listing: Listing, room: int) -> Listing:
    if len(listing.rows) <= room:
        return listing
    return replace(listing, rows=listing.rows[: room - 1], more=len(listing.rows) - room + 1)
