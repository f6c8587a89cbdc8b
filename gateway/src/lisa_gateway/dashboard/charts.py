"""Numbers of charts: rates and lags from samples, and small pictures that need no script."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from lisa_gateway.dashboard.selection import STATES
from lisa_manager import BUCKETS, Sample

__all__ = ["HORIZONS", "bars", "series", "spark"]

HORIZONS = (*("to " + name.rpartition("-")[2] for name, _ in BUCKETS), "beyond")
"""Names of the nine times within which waiting messages fall due."""

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
