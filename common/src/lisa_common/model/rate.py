"""Rates, as a policy holds them: a number of messages and a period, as in 100/s, 10/30s or 1000/h."""

import re

from lisa_common.errors import InvalidInput

__all__ = ["check_rate", "read_rate"]

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_RATE = re.compile(r"([1-9][0-9]{0,6})/([1-9][0-9]{0,8})?(ms|s|m|min|h|d)", re.ASCII)
_LOW_MS, _HIGH_MS = 10, 31 * _UNITS_MS["d"]
_EXPECTED = "messages in a period of 10 ms to 31 days, as in 100/s, 10/30s or 1000/h"


def read_rate(rate: str) -> tuple[int, int]:
    """The number of messages and the period in ms. Raises InvalidInput."""
    match = _RATE.fullmatch(rate)
    period_ms = int(match[2] or 1) * _UNITS_MS[match[3]] if match else 0
    if match is None or not _LOW_MS <= period_ms <= _HIGH_MS:
        raise InvalidInput("rate", rate, _EXPECTED)
    return int(match[1]), period_ms


def check_rate(rate: str | None) -> str | None:
    """The rate, if it can be read. Raises InvalidInput."""
    if rate is not None:
        read_rate(rate)
    return rate
