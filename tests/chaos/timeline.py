"""The server's clock over a run, from samples of it: what it showed at most, and at least, between two moments."""

from bisect import bisect_right
from collections.abc import Sequence

from chaos.history import Clock

__all__ = ["Timeline"]


class Timeline:
    """Bounds on the server's clock, in ms, at moments of the history's clock, in s.

    The clock may jump between any two samples; so each stretch between two of them is bounded by both.
    """

    def __init__(self, samples: Sequence[Clock]) -> None:
        ordered = sorted(samples, key=lambda sample: sample.at)
        self._moments = [sample.at for sample in ordered]
        # A sample was taken somewhere between question and answer.
        self._high = [sample.server_ms - sample.since * 1000 for sample in ordered]
        self._low = [sample.server_ms - sample.at * 1000 for sample in ordered]

    def at_most(self, since: float, until: float) -> float:
        """The latest time that the server's clock may have shown between the two moments."""
        if not self._moments:
            return float("inf")
        first, last = self._around(since, until)
        latest = float("-inf")
        for at in range(first, last):
            behind = min(at + 1, len(self._moments) - 1)
            end = until if behind == at else min(until, self._moments[behind])
            latest = max(latest, max(self._high[at], self._high[behind]) + max(end, since) * 1000)
        return latest

    def at_least(self, since: float, until: float) -> float:
        """The earliest time that the server's clock may have shown between the two moments."""
        if not self._moments:
            return float("-inf")
        first, last = self._around(since, until)
        return min(self._low[first : last + 1]) + since * 1000

    def _around(self, since: float, until: float) -> tuple[int, int]:
        """The first sample that counts, and the one behind the last."""
        first = max(bisect_right(self._moments, since) - 1, 0)
        return first, max(bisect_right(self._moments, until), first + 1)
