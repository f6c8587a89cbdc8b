"""Local times: what a wall clock shows, and when it does.

Where clocks change, two hours of a year are odd. A time in spring's gap, which no clock shows, stands for the end of
the gap: 02:30 becomes 03:00. A time in autumn's repeated hour stands for its first occurrence. So a daily time comes
exactly once each day, and `send(at_local=...)` and schedules agree.
"""

import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from lisa_common.errors import InvalidInput

__all__ = ["epoch_ms", "instant_of", "iso_of", "local_ms", "zone_of"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_MINUTE = timedelta(minutes=1)
_ZONE = re.compile(r"[A-Za-z][A-Za-z0-9_+./-]{0,62}")
_OF_THE_MACHINE = {"localtime", "posixrules", "Factory"}
"""Names that mean something else on each machine."""


@lru_cache(maxsize=1_000)
def _zone(name: str) -> ZoneInfo | None:
    if not _ZONE.fullmatch(name) or name in _OF_THE_MACHINE:
        return None
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError):
        # ZoneInfoNotFoundError is a KeyError; a directory of zones, such as "Europe", raises an OSError.
        return None


def zone_of(field: str, name: object) -> ZoneInfo:
    """The time zone of an IANA name. Raises InvalidInput for a name that this machine's database does not have."""
    zone = _zone(name) if isinstance(name, str) else None
    if zone is None:
        raise InvalidInput(field, name, "an IANA time zone that this machine knows, as in Europe/Berlin")
    return zone


def instant_of(local: datetime, zone: ZoneInfo) -> datetime:
    """The instant, in UTC, that a local time without a zone stands for, by the rules above."""
    aware = local.replace(tzinfo=zone, fold=0)
    instant = aware.astimezone(UTC)
    if instant.astimezone(zone).replace(tzinfo=None) == local:
        return instant
    # In a gap. All gaps of the present end on whole minutes.
    local = local.replace(second=0, microsecond=0)
    while instant.astimezone(zone).replace(tzinfo=None) != local:
        local += _MINUTE
        instant = local.replace(tzinfo=zone, fold=0).astimezone(UTC)
    return instant


def local_ms(field: str, local: object, zone_name: object) -> int:
    """The instant of a local time, a datetime without a zone or its ISO text, in ms since 1970. Raises InvalidInput."""
    zone = zone_of("tz", zone_name)
    if isinstance(local, str):
        with suppress(ValueError):
            local = datetime.fromisoformat(local.strip())
    if not isinstance(local, datetime) or local.tzinfo is not None:
        raise InvalidInput(field, local, "a time without a zone, as in 2027-03-01 08:00")
    try:
        return epoch_ms(instant_of(local.replace(fold=0), zone))
    except OverflowError:
        raise InvalidInput(field, local, "a time from 1970 on") from None


def epoch_ms(moment: datetime) -> int:
    """An aware time in ms since 1970, rounded up."""
    return -((_EPOCH - moment) // _MILLISECOND)


def iso_of(ms: int) -> str:
    """A time in ms since 1970 as ISO 8601 in UTC: 2026-11-22T07:00:00Z, with ms only where there are any."""
    text = (_EPOCH + timedelta(milliseconds=ms)).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{ms % 1000:03}Z" if ms % 1000 else f"{text}Z"
