"""Promise 16, for one schedule: each tick is one message, and none is left out that was not skipped.

Its rhythm stays; operators skip ticks, and give it another body, which has the number of the change.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from chaos.draining import Room
from chaos.schedule_verdict import tick_ms_of
from chaos.timeline import Timeline
from chaos.verdict import Verdict
from lisa_common.model.record import unpack_record
from simulation.links import may_be_lost

__all__ = ["TICKS", "Change", "Tick", "judge", "stored"]

TICKS = "ticks"
"""The topic of the schedule."""

_SLACK_MS = 5.0


class Tick(NamedTuple):
    """A delivery of a tick."""

    schedule: str
    tick_ms: int
    message: str
    """Its id and shard."""
    at_ms: int
    """When, by the clock of its worker."""
    at: float
    """When, in the time of the history."""
    number: int = 0
    """Of the change that gave the schedule this body."""


@dataclass(slots=True, eq=False)
class Change:
    """An operator skips a tick, or with a number changes the body. `until` is infinite where the outcome is unknown."""

    since: float
    number: int = 0
    until: float = math.inf
    tick_ms: int | None = None
    """The tick that was skipped."""


def stored(room: Room) -> set[int]:
    """The ticks whose messages have not ended, in ms."""
    shards = room.layout(TICKS).ever
    records = [unpack_record(data) for keys in shards for data in room.admin.hvals(keys.of("messages"))]
    return {tick_ms_of(record.headers) for record in records}


def judge(
    verdict: Verdict,
    seen: Sequence[Tick],
    left: Collection[int],
    period_ms: int,
    outages: Sequence[float],
    *,
    changes: Sequence[Change],
    timeline: Timeline,
    may_skip: bool = False,
) -> None:
    """Judges the deliveries of a schedule. Ticks `left`, in ms, are still stored.

    A server that died, at `outages`, may have lost a tick, and a move of the schedule to another shard with it.
    With `may_skip`, a tick may be left out while an earlier one is not done.
    """
    ids: defaultdict[int, dict[str, float]] = defaultdict(dict)
    for tick in seen:
        ids[tick.tick_ms].setdefault(tick.message, tick.at)
    for tick_ms, found in ids.items():
        *former, _ = sorted(found.values())
        is_one = all(may_be_lost(outages, at, at) for at in former)
        verdict.check(16, is_one, f"tick {tick_ms} is the messages {sorted(found)}")
        verdict.check(16, tick_ms % period_ms == 0, f"{tick_ms} is no tick of the schedule")
    if ids and not may_skip:
        skips = [each for each in changes if not each.number]
        missing = {*range(min(ids), max(ids), period_ms)} - {*ids, *left, *(each.tick_ms for each in skips)}
        unknown = sum(each.until == math.inf for each in skips)
        verdict.check(16, len(missing) <= unknown, f"ticks are left out: {sorted(missing)}; {unknown} may be skipped")
    firm = [each for each in changes if each.until < math.inf and not may_be_lost(outages, each.since, each.until)]
    for change in firm:
        if not change.number:
            # It may have come before, if the clock was set back meanwhile.
            first = min(ids.get(change.tick_ms or 0, {"": -math.inf}).values())
            verdict.check(16, first < change.since, f"tick {change.tick_ms} came, though it was skipped")
            continue
        earlier = {each.number for each in changes if each.until < change.since} | {0}
        # The latest time so far: the clock may have been set back, after the ticks of that time had come.
        now_ms = timeline.at_most(-math.inf, change.until)
        late = [tick.tick_ms for tick in seen if tick.number in earlier and tick.tick_ms > now_ms]
        verdict.check(16, not late, f"ticks of a former version came after change {change.number}: {late}")
        # A change first sends what is due by the former version.
        due_ms = timeline.at_least(change.since, change.since) - _SLACK_MS
        early = [tick.tick_ms for tick in seen if tick.number == change.number and tick.tick_ms < due_ms]
        verdict.check(16, not early, f"ticks that were due before change {change.number} came with its body: {early}")
