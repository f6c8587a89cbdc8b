"""Promise 16, for one schedule that nobody changes: each tick is one message, and none is left out."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import NamedTuple

from chaos.draining import Room
from chaos.schedule_verdict import tick_ms_of
from chaos.verdict import Verdict
from lisa_common.model.record import unpack_record
from simulation.links import may_be_lost

__all__ = ["TICKS", "Tick", "judge", "stored"]

TICKS = "ticks"
"""The topic of the schedule."""


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


def stored(room: Room) -> set[int]:
    """The ticks whose messages have not ended, in ms."""
    shards = room.layout(TICKS).ever
    records = [unpack_record(data) for keys in shards for data in room.admin.hvals(keys.of("messages"))]
    return {tick_ms_of(record.headers) for record in records}


def judge(
    verdict: Verdict, seen: Sequence[Tick], left: Collection[int], period_ms: int, outages: Sequence[float]
) -> None:
    """Judges the deliveries of a schedule. Ticks `left`, in ms, are still stored.

    A server that died, at `outages`, may have lost a tick, and a move of the schedule to another shard with it.
    """
    ids: defaultdict[int, dict[str, float]] = defaultdict(dict)
    for tick in seen:
        ids[tick.tick_ms].setdefault(tick.message, tick.at)
    for tick_ms, found in ids.items():
        *former, _ = sorted(found.values())
        is_one = all(may_be_lost(outages, at, at) for at in former)
        verdict.check(16, is_one, f"tick {tick_ms} is the messages {sorted(found)}")
        verdict.check(16, tick_ms % period_ms == 0, f"{tick_ms} is no tick of the schedule")
    if ids:
        missing = {*range(min(ids), max(ids), period_ms)} - {*ids, *left}
        verdict.check(16, not missing, f"ticks are left out: {sorted(missing)}")
