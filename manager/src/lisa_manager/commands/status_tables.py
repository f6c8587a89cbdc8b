"""The tables of `lisa-manager status`: unhealthy topics first, and no more rows than fit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from rich.table import Table

from lisa_common.cli.columns import Column
from lisa_common.cli.output import shown_duration
from lisa_common.cli.tables import in_shares, new_table
from lisa_common.escaping import shown
from lisa_manager import BUCKETS, TopicStatus

__all__ = ["DUE_IN", "Listing", "Rates", "fit", "listings", "sparkline", "unhealthy_first"]

_NUMBERS = ("waiting", "ready", "delivered", "retry", "garbage")
_COLUMNS = (Column("topic"), *(Column(name, number=True) for name in (*_NUMBERS, "late")))
DUE_IN = (*(name for name, _ in BUCKETS), "beyond")
_DUE_TITLES = ("<1m", "1-10m", "10-30m", "30-60m", "1-6h", "6-24h", "1-7d", "7-30d", ">30d")
_HISTOGRAM = (Column("due in"), *(Column(title, number=True) for title in _DUE_TITLES))
_GROUPS = (
    Column("topic"),
    Column("group"),
    *(Column(name, number=True) for name in ("ready", "delivered", "consumers")),
)
_RATES = (Column("in/s", number=True), Column("out/s", number=True))
_PROBLEM = Column("problem")
_TRENDS = (Column("in", whole=True), Column("out", whole=True))
_BARS = "▁▂▃▄▅▆▇█"
_LIMITS = (Column("topic"), Column("limits"))
_ENDS = (*map(Column, ("topic", "dead letters to", "delay", "expires after", "unused for")),)


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
        """The table for a screen of so many columns, each row on one line."""
        return new_table(self.columns, [list(map(shown, row)) for row in self.rows], width)


def unhealthy_first(statuses: Sequence[TopicStatus]) -> list[TopicStatus]:
    """First topics that cannot be read, then late ones, then those without readers, then those with garbage."""
    return sorted(statuses, key=lambda status: status.urgency)


def sparkline(values: Sequence[float | None]) -> str:
    """A bar for each value, the highest one full; a space where there is none."""
    top = max(filter(None, values), default=1.0)
    return "".join(" " if value is None else _BARS[round(value / top * (len(_BARS) - 1))] for value in values)


def listings(
    statuses: Sequence[TopicStatus], rates: Rates | None = None, history: Sequence[Rates] = ()
) -> list[Listing]:
    """The tables that have rows: topics, when waiting messages are due, groups. With rates and problems, if given.

    The `history` of rates becomes sparklines.
    """
    topics = [
        [s.topic, *(f"{getattr(s, n):,}" for n in _NUMBERS), shown_duration(s.late_ms), *_of_topic(s, rates, history)]
        for s in statuses
    ]
    waiting = [[s.topic, *(f"{count:,}" if count else "." for count in s.due_in)] for s in statuses if s.waiting]
    groups = [
        [s.topic, group.group, f"{group.ready:,}", f"{group.delivered:,}", f"{group.consumers:,}"]
        + ([] if rates is None else [_shown(rates.read.get((s.topic, group.group)))])
        for s in statuses
        for group in s.groups
    ]
    of_topics = (*_RATES, *(_TRENDS if history else ()), _PROBLEM)
    with_rates = (_COLUMNS, _GROUPS) if rates is None else ((*_COLUMNS, *of_topics), (*_GROUPS, _RATES[1]))
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


def _of_topic(status: TopicStatus, rates: Rates | None, history: Sequence[Rates]) -> list[str]:
    if rates is None:
        return []
    topic = status.topic
    trends = [sparkline([each.added.get(topic) for each in history]), sparkline([each.out(topic) for each in history])]
    return [
        _shown(rates.added.get(topic)),
        _shown(rates.out(topic)),
        *(trends if history else ()),
        ", ".join(status.problems),
    ]


def _shown(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:,.0f}" if rate >= 10 or not rate else f"{rate:.1f}"  # noqa: PLR2004


_FRAME = 3
"""Lines of a table besides its rows: the titles, a rule, and an empty line above."""

_LEAST = 2
"""The least lines for the rows of a table: one row, and the number of hidden ones."""


def fit(found: Sequence[Listing], height: int) -> list[Listing]:
    """Cuts tables to so many lines in all, in fair shares; the last ones go first where there is no room for all."""
    kept = list(found[: max(1, height // (_FRAME + _LEAST))])
    rooms = in_shares(height - _FRAME * len(kept), [len(listing.rows) for listing in kept])
    return [_cut(listing, max(room, _LEAST)) for listing, room in zip(kept, rooms, strict=True)]


def _cut(listing: Listing, room: int) -> Listing:
    if len(listing.rows) <= room:
        return listing
    return replace(listing, rows=listing.rows[: room - 1], more=len(listing.rows) - room + 1)
