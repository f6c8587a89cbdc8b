"""Scores of sorted sets as times. A foreign writer may have written any score, even infinity."""

import math
from typing import Final

__all__ = ["LAST_MS", "whole_ms"]

LAST_MS: Final = 2**53
"""Later than every valid time; times are clamped to this and its negative."""


def whole_ms(score: bytes | float) -> int:
    """The time of a score in ms, rounded up. Raises ValueError for NaN and other text."""
    value = float(score)
    if math.isnan(value):
        raise ValueError("a score must be a number; got nan")
    return math.ceil(min(max(value, -LAST_MS), LAST_MS))
