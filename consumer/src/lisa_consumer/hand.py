"""How much of a topic a worker takes in hand: what may run at once, and what it can begin in a moment."""

import math

from lisa_consumer.core import MAX_BATCH

__all__ = ["Hand"]

_AHEAD_S = 0.1
"""What is held ready should have begun after as many seconds: no other worker can have it, though one may be idle."""

_SOON_S = 0.002
"""What begins within this time is marked as begun together with what begins now: a mark takes a round trip."""

_WEIGHT = 1 / 8
"""Of the latest handling in the mean of all."""


class Hand:
    """What a worker holds of one topic, from reading to settling.

    Beyond the `concurrency` messages that may run at once, were all slots free for them, it has room for as many as
    are handled in `_AHEAD_S`, going by how long the latest ones took: for one at least, so that a slot which becomes
    free has something to begin, and for no more than `prefetch`.
    """

    def __init__(self, concurrency: int, prefetch: int) -> None:
        self._concurrency = concurrency
        self._prefetch = prefetch
        self._mean_s: float | None = None
        self.held = 0
        self._plan(min(1, prefetch))

    def note(self, handling_s: float) -> None:
        """Learns how long a message took to handle."""
        mean_s = self._mean_s
        self._mean_s = mean_s = handling_s if mean_s is None else mean_s + _WEIGHT * (handling_s - mean_s)
        in_time = self._concurrency * _AHEAD_S
        ahead = self._prefetch
        if mean_s * ahead > in_time:
            ahead = max(1, int(in_time / mean_s))
        if ahead != self._ahead:
            self._plan(ahead)

    @property
    def expected_s(self) -> float:
        """How long all that is held should take to be handled; infinite while nothing has been."""
        rounds = -(-self.held // self._concurrency)
        return math.inf if self._mean_s is None else self._mean_s * rounds

    def _plan(self, ahead: int) -> None:
        self._ahead = ahead
        self._most = self._concurrency + ahead
        # Room for a batch, unless a slot would be idle meanwhile.
        self._batch = max(1, min(self._most // 2, ahead))

    @property
    def room(self) -> int:
        """For how many more there is room in one read; less than 0 where it has shrunk since they were read."""
        return min(self._most - self.held, MAX_BATCH)

    @property
    def soon(self) -> int:
        """How many begin within `_SOON_S`, beside those that begin now; none while nothing is known of the handler."""
        return 0 if self._mean_s is None else int(self._concurrency * _SOON_S / max(self._mean_s, 1e-6))

    @property
    def is_worth_a_read(self) -> bool:
        """Whether there is room for a batch, or a slot would be idle otherwise."""
        return self.room >= self._batch
