"""Which ticks of a schedule to send now: decided by its definition, its mark and the time alone.

So all managers agree. As a rule that is one tick ahead, sent when the one before it is due. Ticks that were due while
no manager ran are caught up as the schedule says.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
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
    due, skipped, ahead = _sorted_by_time(schedule, last_ms, now_ms)
    ticks = [_judged(schedule, tick, now_ms) for tick in due]
    if ticks:
        ticks[0] = replace(ticks[0], skipped=skipped)
    if ahead is not None and schedule.overlap == "allow" and len(ticks) < MOST_AT_ONCE:
        ticks.append(Tick(ahead, schedule.due_ms(ahead)))
    return ticks


def _sorted_by_time(schedule: Schedule, last_ms: int, now_ms: int) -> tuple[deque[int], int, int | None]:
    """The ticks that are due, how many earlier ones are left out, and the next tick.

    Of ticks that are left out, the last one stays if there is no other: the mark moves to it.
    """
    # Where one tick is enough, all but the last one are too old.
    start, oldest_ms = recent_start(schedule.ticks_after, last_ms, now_ms), now_ms + 1
    if schedule.catches_up == "all" and schedule.latest_ms is not None:
        oldest_ms = now_ms - schedule.latest_ms
        start = max(last_ms, min(start, oldest_ms - schedule.jitter_ms - 1))
    skipped = sum(1 for _ in islice(_until(schedule, last_ms, start), _MOST_COUNTED))
    due: deque[int] = deque()
    for tick in schedule.ticks_after(start):
        if schedule.due_ms(tick) > now_ms:
            return due, skipped, tick
        if due and schedule.due_ms(due[0]) < oldest_ms:
            due.popleft()
            skipped += 1
        if len(due) == MOST_AT_ONCE:
            break
        due.append(tick)
    return due, skipped, None


def _until(schedule: Schedule, after_ms: int, until_ms: int) -> Iterator[int]:
    for tick in schedule.ticks_after(after_ms):
        if tick > until_ms:
            return
        yield tick


def _judged(schedule: Schedule, tick_ms: int, now_ms: int) -> Tick:
    """A tick that is due: sent unless it is too late."""
    due_ms = schedule.due_ms(tick_ms)
    late_ms = now_ms - due_ms
    following = next(schedule.ticks_after(tick_ms), None)
    half_ms = _PROMPT_MS if following is None else (following - tick_ms) // 2
    late = late_ms > min(_PROMPT_MS, half_ms)
    is_timely = schedule.latest_ms is None or late_ms <= schedule.latest_ms
    return Tick(tick_ms, due_ms, late, send=is_timely and not (late and schedule.catches_up == "none"))
