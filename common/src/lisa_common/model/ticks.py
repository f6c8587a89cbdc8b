"""Which ticks of a schedule to send now: decided by its definition, its mark and the time alone.

So all managers agree. As a rule that is one tick ahead, sent when the one before it is due. Ticks that were due while
no manager ran are caught up as the schedule says.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from lisa_common.model.rhythm import recent_start
from lisa_common.model.schedule import Schedule

__all__ = ["MOST_AT_ONCE", "Tick", "next_due_ms", "plan"]

MOST_AT_ONCE: Final = 100
"""Most ticks of one schedule that one call sends."""

_MOST_COUNTED: Final = 1_000
"""A run of missed ticks is counted up to this number."""

_PROMPT_MS: Final = 5_000
"""A tick that is later than this, or than half the time to the next one, counts as missed."""


@dataclass(frozen=True, slots=True)
class Tick:
    """A tick to send, or to leave out. Times are ms since 1970."""

    tick_ms: int
    due_ms: int
    late: bool = False
    """Whether it was missed: sent to catch up, or left out for that reason."""
    skipped: int = 0
    """Earlier ticks that are left out with this one."""
    send: bool = True


def next_due_ms(schedule: Schedule, last_ms: int) -> int | None:
    """When the tick after one is due; None where there is none."""
    tick = next(schedule.ticks_after(last_ms), None)
    return None if tick is None else schedule.due_ms(tick)


def plan(schedule: Schedule, last_ms: int, now_ms: int) -> list[Tick]:
    """The ticks to send after `last_ms`, in order; the last one may be ahead. Repeat it while it returns the most."""
    if schedule.paused:
        return []
    missed, skipped, ahead = _sorted_by_time(schedule, last_ms, now_ms)
    ticks: list[Tick] = []
    if missed:
        if schedule.catchup == "all":
            ticks = [_of(schedule, tick, late=_is_late(schedule, tick, now_ms)) for tick in missed]
            ticks[0] = Tick(ticks[0].tick_ms, ticks[0].due_ms, ticks[0].late, skipped)
        else:
            late = _is_late(schedule, missed[-1], now_ms)
            send = schedule.catchup == "latest" or not late
            ticks = [_of(schedule, missed[-1], late=late, skipped=skipped, send=send)]
    if ahead is not None and schedule.overlap == "allow" and len(ticks) < MOST_AT_ONCE:
        ticks.append(_of(schedule, ahead))
    return ticks


def _sorted_by_time(schedule: Schedule, last_ms: int, now_ms: int) -> tuple[list[int], int, int | None]:
    """The missed ticks that may be sent, how many are left out, and the next tick."""
    start, skipped = last_ms, 0
    if schedule.catchup == "all":
        start = max(last_ms, now_ms - schedule.catchup_window_ms - 1)
    else:
        start = recent_start(schedule.ticks_after, last_ms, now_ms)
    if start > last_ms:
        skipped = sum(1 for _ in islice(_until(schedule, last_ms, start), _MOST_COUNTED))
    most = MOST_AT_ONCE if schedule.catchup == "all" else None
    missed: deque[int] = deque()
    ahead = None
    for tick in schedule.ticks_after(start):
        if schedule.due_ms(tick) > now_ms:
            ahead = tick
            break
        if most is not None and len(missed) == most:
            break
        missed.append(tick)
        if most is None and len(missed) > 1:
            missed.popleft()
            skipped += 1
    return list(missed), skipped, ahead


def _until(schedule: Schedule, after_ms: int, until_ms: int) -> Iterator[int]:
    for tick in schedule.ticks_after(after_ms):
        if tick > until_ms:
            return
        yield tick


def _of(schedule: Schedule, tick_ms: int, *, late: bool = False, skipped: int = 0, send: bool = True) -> Tick:
    return Tick(tick_ms, schedule.due_ms(tick_ms), late, skipped, send)


def _is_late(schedule: Schedule, tick_ms: int, now_ms: int) -> bool:
    late_ms = now_ms - schedule.due_ms(tick_ms)
    following = next(schedule.ticks_after(tick_ms), None)
    half_ms = _PROMPT_MS if following is None else (following - tick_ms) // 2
    return late_ms > min(_PROMPT_MS, half_ms)
