"""Numbers of charts: rates and lags from samples, and small pictures that need no script."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from lisa_gateway.dashboard.selection import STATES
from lisa_manager import DueCounts, Lags, Sample

__all__ = ["HORIZONS", "HOUR_MS", "Hour", "Part", "bars", "by_hour", "parts_of", "series", "spark", "ticks_of"]

HORIZONS = ("up to 1 min", "1-10 min", "10-30 min", "30-60 min", "1-6 h", "6-24 h", "1-7 d", "7-30 d", "over 30 d")
"""Names of the nine times within which waiting messages fall due: `BUCKETS`, and beyond."""

HOUR_MS = 3_600_000
_DAY_MS = 86_400_000
_TICKS = 4
"""Labelled distances of an axis."""

_SPARK = (100, 20)
"""Width and height of a small chart."""


def series(samples: Sequence[Sample]) -> dict[str, Any]:
    """Columns for charts: times in s since 1970, sizes by state, rates a second, lags in ms. None where unknown."""
    rates = [(None, None), *(_rates(before, now) for before, now in pairwise(samples))]
    columns: dict[str, Any] = {"at": [sample.at_ms / 1000 for sample in samples]}
    columns |= {name: [getattr(sample, name) for sample in samples] for name in STATES}
    columns["ready_s"] = [ready for ready, _ in rates[: len(samples)]]
    columns["read_s"] = [read for _, read in rates[: len(samples)]]
    columns["p50"] = [sample.lags.quantile(0.5) for sample in samples]
    columns["p99"] = [sample.lags.quantile(0.99) for sample in samples]
    return columns


def _rates(before: Sample, now: Sample) -> tuple[float | None, float | None]:
    seconds = (now.at_ms - before.at_ms) / 1000
    steps = (now.added - before.added, now.read - before.read)
    # A counter that went back has restarted from 0.
    ready, read = (None if step < 0 else round(step / seconds, 3) for step in steps)
    return ready, read


def spark(samples: Sequence[Sample]) -> str:
    """The points of a small line: all messages of a topic in the last hour. Empty for less than two samples."""
    if len(samples) < 2:  # noqa: PLR2004 - a line has two ends
        return ""
    values = [sum(getattr(sample, name) for name in STATES) for sample in samples]
    first, last, most = samples[0].at_ms, samples[-1].at_ms, max(*values, 1)
    width, height = _SPARK
    points = (
        (width * (sample.at_ms - first) / max(1, last - first), 1 + (height - 2) * (1 - value / most))
        for sample, value in zip(samples, values, strict=True)
    )
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def bars(counts: Sequence[int]) -> list[tuple[str, int, float]]:
    """The nine bars of what waits: name, count, and width from 0 to 100. A bar that is not empty can be seen."""
    most = max(*counts, 1)
    return [(name, n, max(1.0, 100 * n / most) if n else 0.0) for name, n in zip(HORIZONS, counts, strict=True)]


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a histogram. Times are ms since 1970."""

    start_ms: int
    end_ms: int
    count: int
    height: float
    """From 0 to 100. A part that is not empty can be seen."""


def parts_of(counts: DueCounts) -> list[Part]:
    """The parts of a histogram of due times."""
    most = max((1, *counts.counts))
    starts = range(counts.start_ms, counts.end_ms, counts.step_ms)
    return [
        Part(start, start + counts.step_ms, n, max(2.0, 100 * n / most) if n else 0.0)
        for start, n in zip(starts, counts.counts, strict=True)
    ]


def ticks_of(counts: DueCounts) -> list[tuple[int, str]]:
    """Moments at equal distances along a histogram: ms since 1970, and in UTC as exactly as they differ."""
    span = counts.end_ms - counts.start_ms
    moments = [counts.start_ms + span * at // _TICKS for at in range(_TICKS + 1)]
    return [(ms, _shown_tick(ms, span // _TICKS)) for ms in moments]


def _shown_tick(ms: int, distance_ms: int) -> str:
    moment = datetime.fromtimestamp(ms / 1000, UTC)
    if distance_ms >= _DAY_MS:
        return f"{moment:%Y-%m-%d}"
    if distance_ms >= 60_000:  # noqa: PLR2004 - a minute
        return f"{moment:%m-%d %H:%M}"
    return f"{moment:%H:%M:%S}" if distance_ms >= 1_000 else f"{moment:%H:%M:%S}.{ms % 1000:03}"  # noqa: PLR2004


@dataclass(slots=True)
class Hour:
    """How late a topic was in an hour."""

    lags: Lags
    """How late messages became ready."""
    late_ms: int | None = None
    """The longest time for which a message had been due and not read, at any sample; None: there was no sample."""

    @property
    def worst_ms(self) -> float:
        """By which hours are compared."""
        return max(self.lags.quantile(0.99) or 0, self.late_ms or 0)

    @property
    def level(self) -> int:
        """From 0, below a second, to 4, from ten minutes on."""
        return sum(self.worst_ms >= limit for limit in (1_000, 10_000, 60_000, 600_000))


def by_hour(samples: Sequence[Sample], hours: Sequence[int]) -> list[Hour]:
    """Samples by the hours that begin at these times, in ms since 1970."""
    found = {start: Hour(Lags()) for start in hours}
    for sample in samples:
        # The lags are those of the interval before.
        if hour := found.get((sample.at_ms - 1) // HOUR_MS * HOUR_MS):
            hour.lags.merge(sample.lags)
        if hour := found.get(sample.at_ms // HOUR_MS * HOUR_MS):
            hour.late_ms = max(hour.late_ms or 0, sample.late_ms)
    return list(found.values())
