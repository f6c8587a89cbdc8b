"""The server's clock over a run, from samples of it: what it showed at most, and at least, between two moments."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf

from chaos.history import Clock

__all__ = ["Timeline"]

_JUMP_MS = 1_000.0
"""Clocks that differ by more have been set; by less, a sample took its time."""

_STRETCH_S = 10.0
"""Two clocks of one machine may drift apart, but not in so short a time."""


@dataclass(slots=True)
class _Stretch:
    """The server's clock was ahead of ours by `low` to `high` ms, at some time between `since` and `until`, in s."""

    since: float
    until: float
    low: float
    high: float


class Timeline:
    """Bounds on the server's clock, in ms, at moments of the history's clock, in s.

    A sample was taken somewhere between question and answer, so each bounds the clock on both sides; while the clock is
    not set, the best of them hold for all. When it is set, it may have shown either from when the last sample before
    was asked for until the first one after was answered.
    """

    def __init__(self, samples: Sequence[Clock]) -> None:
        self._stretches = list(_stretches(sorted(samples, key=lambda sample: sample.at)))
        self._starts = [stretch.since for stretch in self._stretches]
        self._ends = [stretch.until for stretch in self._stretches]

    def at_most(self, since: float, until: float) -> float:
        """The latest time that the server's clock may have shown between the two moments."""
        return max((each.high + min(until, each.until) * 1000 for each in self._between(since, until)), default=inf)

    def at_least(self, since: float, until: float) -> float:
        """The earliest time that the server's clock may have shown between the two moments."""
        return min((each.low + max(since, each.since) * 1000 for each in self._between(since, until)), default=-inf)

    def _between(self, since: float, until: float) -> list[_Stretch]:
        return self._stretches[bisect_left(self._ends, since) : bisect_right(self._starts, until)]


def _stretches(samples: Sequence[Clock]) -> Iterator[_Stretch]:
    groups = list(_unset(samples))
    for at, group in enumerate(groups):
        yield _Stretch(
            since=groups[at - 1][-1].since if at else -inf,
            until=groups[at + 1][0].at if at + 1 < len(groups) else inf,
            low=max(sample.server_ms - sample.at * 1000 for sample in group),
            high=min(sample.server_ms - sample.since * 1000 for sample in group),
        )


def _unset(samples: Sequence[Clock]) -> Iterator[list[Clock]]:
    """Groups of samples between which the clock was not set."""
    group: list[Clock] = []
    low, high = -inf, inf
    for sample in samples:
        sample_low, sample_high = sample.server_ms - sample.at * 1000, sample.server_ms - sample.since * 1000
        is_same = sample_low - _JUMP_MS < high and low < sample_high + _JUMP_MS
        if group and not (is_same and sample.at - group[0].at < _STRETCH_S):
            yield group
            group, low, high = [], -inf, inf
        group.append(sample)
        low, high = max(low, sample_low), min(high, sample_high)
    if group:
        yield group
