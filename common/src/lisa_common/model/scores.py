"""Scores of sorted sets as times. A foreign writer may have written any score, even infinity."""

import math
from typing import Final

__all__ = ["LAST_MS", "PARKED_MS", "due_ms_of", "unparked", "whole_ms"]

LAST_MS: Final = 2**53
"""Later than every valid time; times are clamped to this and its negative."""

PARKED_MS: Final = 2**44
"""What `lua/include/slots.lua` adds to the score of a message that waits for a slot of its key: the year 2527."""


def whole_ms(score: bytes | float) -> int:
    """The time of a score in ms, rounded up. Raises ValueError for NaN and other text."""
    value = float(score)
    if math.isnan(value):
        raise ValueError("a score must be a number; got nan")
    return math.ceil(min(max(value, -LAST_MS), LAST_MS))


def unparked(score: bytes | float) -> float:
    """A score of `waiting` or `retry` as it is when the message does not wait for a slot of its key."""
    value = float(score)
    return value - PARKED_MS if PARKED_MS <= value < 2 * PARKED_MS else value


def due_ms_of(score: bytes | float) -> int:
    """When a message with this score in `waiting` or `retry` is due, as `whole_ms`."""
    return whole_ms(unparked(score))
