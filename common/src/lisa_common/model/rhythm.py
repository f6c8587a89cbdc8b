"""The ticks of a schedule: every so many ms since 1970, or by a cron expression in a time zone.

CronSim matches the fields of an expression. When a wall clock jumps, Debian's rules hold: a job of fixed times runs
once each day (`localtime` says when), and a job whose minute or hour is a star runs by the real time that passes.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from typing import Any, Final
from zlib import crc32

from lisa_common.errors import InvalidInput, LisaError
from lisa_common.model.cron_forms import read_expression
from lisa_common.model.localtime import epoch_ms, instant_of, zone_of

__all__ = [
    "CronRhythm",
    "EveryRhythm",
    "MissingCron",
    "Rhythm",
    "check_cron",
    "explain_cron",
    "jitter_of",
    "recent_start",
    "rhythm_of",
]

_MAX_CRON = 200
_BACK: Final = tuple(
    1000 * seconds for seconds in (60, 3_600, 86_400, 32 * 86_400, 367 * 86_400, 9 * 366 * 86_400, 41 * 366 * 86_400)
)
"""How far to look back for the latest ticks, in ms: an expression has few ticks in the first of these that has any."""


class MissingCron(LisaError):
    """The package that reads cron expressions is not installed."""

    def __init__(self) -> None:
        super().__init__("cron expressions need one more package: pip install 'lisa-common[schedules]'")


@cache
def _cronsim() -> Any:
    # Imported here, as only cron expressions need the extra.
    try:
        import cronsim  # noqa: PLC0415
    except ModuleNotFoundError:
        raise MissingCron from None
    return cronsim


@dataclass(frozen=True, slots=True)
class EveryRhythm:
    """Ticks at whole multiples of a period, in ms since 1970: the same for all managers."""

    period_ms: int

    def after(self, ms: int) -> Iterator[int]:
        """All ticks after a time."""
        tick = (ms // self.period_ms + 1) * self.period_ms
        while True:
            yield tick
            tick += self.period_ms


@dataclass(frozen=True, slots=True)
class CronRhythm:
    """Ticks of a cron expression of five fields, or of six with the seconds first, in a time zone."""

    expression: str
    tz: str

    def after(self, ms: int) -> Iterator[int]:
        """All ticks after a time; none where the expression has no more."""
        last = ms
        for tick in self._by_local_time(ms) if self.is_fixed else self._by_real_time(ms):
            # Two local times in a gap are one tick.
            if tick > last:
                last = tick
                yield tick

    @property
    def is_fixed(self) -> bool:
        """Whether the expression names times of the day: neither its minutes nor its hours begin with a star."""
        *_, minute, hour, _, _, _ = self.expression.split()
        return not minute.startswith("*") and not hour.startswith("*")

    def _by_local_time(self, ms: int) -> Iterator[int]:
        zone = zone_of("tz", self.tz)
        # CronSim leaves out the start itself, and changes no time that has no zone. No local time up to the start
        # stands for a later instant, as each stands for its first occurrence.
        start = _moment(ms).astimezone(zone).replace(tzinfo=None)
        for local in _cronsim().CronSim(self.expression, start):
            yield epoch_ms(instant_of(local, zone))

    def _by_real_time(self, ms: int) -> Iterator[int]:
        zone = UTC if self.tz == "UTC" else zone_of("tz", self.tz)
        moment = _moment(ms).astimezone(zone)
        # In the first of two equal hours, what its clock has shown comes again.
        repeated = _offset(moment) - _offset(moment.replace(fold=1))
        again: deque[datetime] = deque()
        for local in _cronsim().CronSim(self.expression, moment.replace(tzinfo=None, fold=0) - repeated):
            first = local.replace(tzinfo=zone)
            instant = first.astimezone(UTC)
            while again and again[0] < instant:
                yield epoch_ms(again.popleft())
            if instant.astimezone(zone).replace(tzinfo=None, fold=0) != local:
                # In a gap: no clock shows it.
                continue
            yield epoch_ms(instant)
            second = first.replace(fold=1)
            if _offset(second) != _offset(first):
                again.append(second.astimezone(UTC))


Rhythm = EveryRhythm | CronRhythm


def _offset(moment: datetime) -> timedelta:
    return moment.utcoffset() or timedelta()


def _moment(ms: int) -> datetime:
    return datetime.fromtimestamp(ms // 1000, UTC)


@lru_cache(maxsize=20_000)
def rhythm_of(every_ms: int | None, cron: str | None, tz: str) -> Rhythm:
    """The rhythm of a schedule that has either."""
    return EveryRhythm(every_ms) if every_ms is not None else CronRhythm(cron or "", tz)


def check_cron(value: object, tz: str, *, now_ms: int) -> str:
    """A cron expression in the form that is stored; see `read_expression`.

    Raises InvalidInput where it cannot be read, or has no tick within 50 years; MissingCron without the package.
    """
    expected = "five fields, as in 30 2 * * MON-FRI, or six with the seconds first"
    if not isinstance(value, str) or len(value) > _MAX_CRON:
        raise InvalidInput("cron", value, expected)
    cronsim = _cronsim()
    try:
        text = read_expression(value)
    except ValueError as error:
        raise InvalidInput("cron", value, f"{expected} ({error})") from None
    try:
        next(CronRhythm(text, tz).after(now_ms))
    except StopIteration:
        raise InvalidInput("cron", value, "an expression that comes true within 50 years") from None
    except cronsim.CronSimError:
        raise InvalidInput("cron", value, f"{expected} (its months have no such day)") from None
    return text


def explain_cron(expression: str) -> str:
    """A checked cron expression in words, as in "At 02:30 on Monday through Friday"."""
    start = datetime(2000, 1, 1, tzinfo=UTC)
    try:
        sim = _cronsim().CronSim(expression, start)
        if sim.day_and:
            return str(sim.explain())
        if sim.days.issuperset(range(1, 32)) or {day % 7 for day in sim.weekdays if isinstance(day, int)} == {
            *range(7)
        }:
            *times, _, month, _ = expression.split()
            return str(_cronsim().CronSim(" ".join((*times, "*", month, "*")), start).explain())
        # CronSim says "and" where either is enough.
        return str(sim.explain()).replace(" on ", " either on ", 1).replace(" and on ", " or on ", 1)
    except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError):
        # CronSim evaluates more than it has words for.
        return expression


def jitter_of(name: str, tick_ms: int, jitter_ms: int) -> int:
    """By how much a tick of a schedule is delayed, in ms: less than its jitter, and the same for all managers."""
    return crc32(f"{name}@{tick_ms}".encode()) % jitter_ms if jitter_ms else 0


def recent_start(after: Callable[[int], Iterator[int]], last_ms: int, now_ms: int) -> int:
    """A time from `last_ms` on, from which few ticks lead to the latest two before `now_ms`; `last_ms` if need be.

    So nobody steps through the ticks of a year in which no manager ran.
    """
    for back_ms in _BACK:
        start = now_ms - back_ms
        if start <= last_ms:
            break
        ticks = after(start)
        first, second = next(ticks, None), next(ticks, None)
        if first is not None and second is not None and second <= now_ms:
            return start
    return last_ms
