"""Clock changes: a daily time comes once on each local day, in all zones, from 2020 to 2029.

The reference is the definition itself: it walks through a day in steps between which no clock changes, and takes the
first at which a wall clock shows the time or a later one; where a gap ends at midnight, the first of the next day.
"""

import zoneinfo
from bisect import bisect_left
from datetime import UTC, date, datetime, time, timedelta
from functools import cache
from itertools import pairwise, takewhile
from typing import Any

import pytest

from lisa_common.model.localtime import local_ms
from lisa_common.model.rhythm import CronRhythm

_FROM, _TO = datetime(2020, 1, 1, tzinfo=UTC), datetime(2030, 1, 1, tzinfo=UTC)
_WALKED = datetime(2022, 1, 1, tzinfo=UTC)
"""Up to here each day is walked through: days that no change is near are alike."""
_TIMES = (time(0, 0), time(0, 30), time(1, 15), time(2, 0), time(2, 30), time(3, 0), time(23, 45))
_ODD = (
    *("Europe/Berlin", "America/New_York", "America/Santiago", "Africa/Cairo", "Asia/Beirut", "America/Havana"),
    *("Australia/Lord_Howe", "Africa/Casablanca", "America/Nuuk", "Asia/Gaza", "America/Asuncion", "Antarctica/Troll"),
    *("Asia/Kathmandu", "Pacific/Apia", "America/Scoresbysund", "Asia/Tehran"),
)


@cache
def _changes(zone: zoneinfo.ZoneInfo) -> tuple[tuple[datetime, timedelta | None], ...]:
    """The minutes in which the zone's clocks change, and the offsets from then on."""
    changes = [(_FROM, _FROM.astimezone(zone).utcoffset())]
    day = _FROM
    while day < _TO:
        before, day = day, day + timedelta(days=1)
        if (after := day.astimezone(zone).utcoffset()) != changes[-1][1]:
            minutes = range(1, 1441)
            at = bisect_left(minutes, True, key=lambda m: _offset(before, m, zone) == after)  # noqa: FBT003
            changes.append((before + timedelta(minutes=minutes[at]), after))
    return tuple(changes)


def _offset(day: datetime, minutes: int, zone: zoneinfo.ZoneInfo) -> timedelta | None:
    return (day + timedelta(minutes=minutes)).astimezone(zone).utcoffset()


def _days(change: datetime, zone: zoneinfo.ZoneInfo) -> dict[date, list[tuple[time, datetime]]]:
    """The week around a change, by local day: what a wall clock shows, and when, every five minutes.

    Every minute in Antarctica/Casey, where clocks went forward at one minute past midnight.
    """
    step = timedelta(minutes=1 if change.minute % 5 else 5)
    moment = datetime.combine(change.date() - timedelta(days=3), time(), UTC)
    days: dict[date, list[tuple[time, datetime]]] = {}
    for _ in range(timedelta(days=6) // step):
        local = moment.astimezone(zone)
        days.setdefault(local.date(), []).append((local.time(), moment))
        moment += step
    whole = sorted(days)[1:-1]
    return {day: days[day] for day in whole}


def _ticks(rhythm: CronRhythm, start: datetime, end: datetime) -> list[datetime]:
    end_ms = end.timestamp() * 1000
    ticks = rhythm.after(int(start.timestamp() * 1000) - 1)
    return [datetime.fromtimestamp(tick / 1000, UTC) for tick in takewhile(lambda tick: tick < end_ms, ticks)]


def _check(name: str) -> int:
    zone, checked = zoneinfo.ZoneInfo(name), 0
    for change, _ in _changes(zone)[1:]:
        days = _days(change, zone)
        start, end = days[min(days)][0][1], days[max(days)][-1][1]
        for at in _TIMES:
            expected = [next((when for shown, when in minutes if shown >= at), None) for minutes in days.values()]
            # Where the gap ends at midnight, its end is the first minute of the next day.
            following = [minutes[0][1] for minutes in days.values()][1:]
            expected = [when or later for when, later in zip(expected, [*following, end], strict=True)]
            for fields in (f"{at.minute} {at.hour} * * *", f"0 {at.minute} {at.hour} * * *"):
                assert _ticks(CronRhythm(fields, name), start, end) == expected, (name, change, fields)
            for day, moment in zip(days, expected, strict=True):
                assert local_ms("at_local", datetime.combine(day, at), name) == moment.timestamp() * 1000
            checked += len(expected)
    return checked


@pytest.mark.parametrize("name", _ODD)
def test_a_daily_time_comes_once_a_day(name: str) -> None:
    """Around each change of the clocks, by cron expressions of five and six fields, and by sends at local times."""
    checked = _check(name)
    assert checked or name in {"Asia/Kathmandu", "Pacific/Apia"}


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(1500)
def test_in_all_zones() -> None:
    """The same in every zone of the database, and no day without a tick in two years.

    Of zones whose clocks have agreed since 2020, one is checked in full; the others must have the same ticks around the
    changes of autumn 2026.
    """
    checked, known = 0, dict[Any, list[datetime]]()
    start, end = datetime(2026, 9, 20, tzinfo=UTC), datetime(2026, 11, 10, tzinfo=UTC)
    for name in sorted(zoneinfo.available_timezones() - {"Factory", "localtime"}):
        zone, rhythm = zoneinfo.ZoneInfo(name), CronRhythm("30 2 * * *", name)
        if (history := _changes(zone)) in known:
            assert _ticks(rhythm, start, end) == known[history], name
            continue
        known[history] = _ticks(rhythm, start, end)
        ticks = _ticks(rhythm, _FROM, _WALKED)
        checked += _check(name)
        local = {tick.astimezone(zone).date() for tick in ticks}
        assert len(local) == len(ticks), name
        assert abs(len(ticks) - (_WALKED - _FROM).days) <= 1, name
    print(f"{checked:,} local days with a change of clocks near, in {len(known)} zones")  # noqa: T201
    assert checked > 20_000


@pytest.mark.parametrize("name", _ODD)
def test_starred_jobs_run_whenever_the_clock_shows_their_time(name: str) -> None:
    """Never for a time in a gap, also where it is at midnight; twice for one that is repeated, wherever one begins."""
    zone = zoneinfo.ZoneInfo(name)
    for change, _ in _changes(zone)[1:9]:
        days = _days(change, zone)
        start, end = days[min(days)][0][1], days[max(days)][-1][1]
        today = change.astimezone(zone).date()
        for hour in range(5):
            shown = [
                [when for clock, when in minutes if clock.hour == hour and clock.minute % 20 == 0]
                for minutes in (days[today], [each for minutes in days.values() for each in minutes])
            ]
            for day, expected in zip((today.day, "*"), shown, strict=True):
                rhythm = CronRhythm(f"*/20 {hour} {day} * *", name)
                for begin in (start, change - timedelta(minutes=50), change + timedelta(minutes=50)):
                    told = (change, hour, day, begin)
                    assert _ticks(rhythm, begin, end) == [when for when in expected if when >= begin], told


def test_starred_jobs_run_by_real_time() -> None:
    """An hourly job has 23 ticks on the day when clocks go forward, and 25 when they go back; each an hour apart."""
    zone = zoneinfo.ZoneInfo("Europe/Berlin")
    for day, count in ((date(2026, 3, 29), 23), (date(2026, 10, 25), 25)):
        start = datetime.combine(day, time(), zone).astimezone(UTC)
        end = datetime.combine(day + timedelta(days=1), time(), zone).astimezone(UTC)
        ticks = _ticks(CronRhythm("0 * * * *", "Europe/Berlin"), start, end)
        assert len(ticks) == count
        assert {later - tick for tick, later in pairwise(ticks)} == {timedelta(hours=1)}
