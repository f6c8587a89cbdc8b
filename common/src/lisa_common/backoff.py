"""Delays between attempts to reach a server."""

import random
from dataclasses import dataclass

__all__ = ["RECONNECT", "Backoff"]

_MAX_DOUBLINGS = 32
"""Every delay has reached its cap by then; 2.0 ** 1024 would overflow, after 15 minutes of failures."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential delays in seconds, each a random part of its bound ("full jitter").

    Formula: https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/.
    """

    base: float
    cap: float

    def compute(self, failures: int) -> float:
        """The delay after so many failures in a row: seconds from 0 to `cap`."""
        return min(self.cap, random.random() * self.base * 2.0 ** min(failures, _MAX_DOUBLINGS))


RECONNECT = Backoff(base=0.02, cap=1.0)
"""Delays between attempts to reach a server."""
