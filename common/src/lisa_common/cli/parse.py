"""Durations and times as people write them."""

import re
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from lisa_common.cli.output import shown_duration
from lisa_common.errors import InvalidInput

__all__ = ["DURATION_FORM", "read_duration", "read_headers", "read_moment", "read_ms"]

DURATION_FORM = "seconds, or numbers with units, as in 250ms, 30s, 15m, 1h30m, 7d"
"""What a duration must be, for errors."""

_LONGEST_NUMBER = 12

_WITH_UNITS = "numbers with units, as in 250ms, 30s, 15m, 1h30m, 7d"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = range(10**11, 10**14)
"""From 1973 on; smaller numbers are seconds since 1970, and would be in the past."""

_UNIT_S = {"d": 86_400, "h": 3_600, "m": 60, "s": 1, "ms": 0.001}
_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_SECONDS = re.compile(_NUMBER)
_PARTS = re.compile("(?=.)" + "".join(rf"(?:(?P<{unit}>{_NUMBER}){unit})?" for unit in _UNIT_S))


def read_duration(field: str, text: str, *, needs_unit: bool = False) -> float:
    """A duration in seconds, from "90", "1.5", "250ms", "30s", "15m", "1h30m" or "7d"; numbers alone are seconds.

    With `needs_unit`, a number alone is refused unless it is 0: for fields that other interfaces take in ms.
    """
    text = text.strip()
    if _SECONDS.fullmatch(text):
        if needs_unit and float(text):
            raise InvalidInput(field, text, _readings(text))
        return float(text)
    parts = _PARTS.fullmatch(text)
    if parts is None:
        raise InvalidInput(field, text, _WITH_UNITS if needs_unit else DURATION_FORM)
    return sum(float(number) * _UNIT_S[unit] for unit, number in parts.groupdict("0").items())


def _readings(number: str) -> str:
    """Returns the possible meanings of a number without a unit, for errors."""
    if len(number) > _LONGEST_NUMBER:
        return _WITH_UNITS
    short = shown_duration(float(number) * 1000)
    return f"a number with its unit, as in {number}ms or {number}s" + ("" if short == f"{number}s" else f" ({short})")


def read_headers(texts: Iterable[str]) -> dict[str, str]:
    """Headers by name, from texts such as "KEY=VALUE". Raises InvalidInput, also for a name that is given twice."""
    headers: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise InvalidInput("header", text, "KEY=VALUE")
        if name in headers:
            raise InvalidInput("header", text, "given once for each name")
        headers[name] = value
    return headers


def read_moment(field: str, text: str) -> datetime:
    """A time in ISO 8601 with its zone: "2026-01-31T12:00:00+01:00", "2026-01-31 11:00Z"."""
    with suppress(ValueError):
        moment = datetime.fromisoformat(text.strip())
        if moment.tzinfo is not None:
            return moment
    raise InvalidInput(field, text, "a time in ISO 8601 with its zone, as in 2026-01-31T12:00:00+01:00")


def read_ms(field: str, ms: int) -> datetime:
    """A time in ms since 1970. Raises InvalidInput, also for the same time in seconds."""
    if ms not in _MS:
        raise InvalidInput(field, ms, "ms since 1970, a number of 12 to 14 digits")
    return _EPOCH + timedelta(milliseconds=ms)
