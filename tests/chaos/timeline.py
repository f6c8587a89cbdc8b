"""The server's clock over a run, from samples: its highest and lowest time between two moments."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from chaos.history import Clock

__all__ = ["Timeline"]

_JUMP_MS = 1_000.0
"""Clocks that differ by more have been set; by less, a sample took its time."""

_STRETCH_S = 10.0
"""Two clocks of one machine may drift apart, but not in so short a time."""


@dataclass(slots=True)
class _Stretch:
    """From `since` to `until`, in s, the server's clock was ahead of ours by `low` to `high` ms."""

    since: float
    until: float
    low: float
    high: float


class Timeline:
    """Bounds on the server's clock, in ms, at moments of the history's clock, in s.

    A sample was taken somewhere between question and answer, so each bounds the clock on both sides; while the clock is
    not set, the best bounds hold for all. If it is set between two samples, it may have shown either time.
    """

    def __init__(self, samples: Sequence[Clock]) -> None:
        self._stretches = list(_with_gaps(_stretches(sorted(samples, key=lambda sample: sample.at))))
        self._starts = [stretch.since for stretch in self._stretches]

    def at_most(self, since: float, until: float) -> float:
        """The latest time that the server's clock may have shown between the two moments."""
        if not self._stretches:
            return float("inf")
        *before, last = self._between(since, until)
        return max([last.high + until * 1000, *(each.high + each.until * 1000 for each in before)])

    def at_least(self, since: float, until: float) -> float:
        """The earliest time that the server's clock may have shown between the two moments."""
        if not self._stretches:
            return float("-inf")
        first, *behind = self._between(since, until)
        return min([first.low + since * 1000, *(each.low + each.since * 1000 for each in behind)])

    def _between(self, since: float, until: float) -> list[_Stretch]:
        first = max(bisect_right(self._starts, since) - 1, 0)
        return self._stretches[first : max(bisect_right(self._starts, until), first + 1)]


def _stretches(samples: Sequence[Clock]) -> Iterator[_Stretch]:
    current: _Stretch | None = None
    for sample in samples:
        low, high = sample.server_ms - sample.at * 1000, sample.server_ms - sample.since * 1000
        if current and low - _JUMP_MS < current.high and current.low < high + _JUMP_MS and _is_near(current, sample):
            current.until, current.low, current.high = sample.at, max(current.low, low), min(current.high, high)
            continue
        if current:
            yield current
        current = _Stretch(sample.at, sample.at, low, high)
    if current:
        yield current


def _is_near(stretch: _Stretch, sample: Clock) -> bool:
    return sample.at - stretch.since < _STRETCH_S


def _with_gaps(stretches: Iterator[_Stretch]) -> Iterator[_Stretch]:
    last: _Stretch | None = None
    for stretch in stretches:
        if last:
            yield _Stretch(last.until, stretch.since, min(last.low, stretch.low), max(last.high, stretch.high))
        yield stretch
        last = stretch
