"""Scores of sorted sets as times. Anybody who may write a set may write any score, infinities among them."""

import math
from typing import Final

__all__ = ["LAST_MS", "whole_ms"]

LAST_MS: Final = 2**53
"""Later than every time of ours; a later time is reported as this one, and one before its negative as the negative."""


def whole_ms(score: bytes | float) -> int:
    """The time of a score in ms, rounded up. Raises ValueError for what is no number."""
    value = float(score)
    if math.isnan(value):
        raise ValueError("a score was expected, and not nan")
    return math.ceil(min(max(value, -LAST_MS), LAST_MS))
