"""Promise 16, for one schedule that nobody changes: each tick is one message, and none is left out."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import NamedTuple

from chaos.draining import Room
from chaos.schedule_verdict import tick_ms_of
from chaos.verdict import Verdict
from lisa_common.model.record import unpack_record

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


def stored(room: Room) -> set[int]:
    """The ticks whose messages have not ended, in ms."""
    shards = room.layout(TICKS).ever
    records = [unpack_record(data) for keys in shards for data in room.admin.hvals(keys.of("messages"))]
    return {tick_ms_of(record.headers) for record in records}


def judge(verdict: Verdict, seen: Sequence[Tick], left: Collection[int], period_ms: int) -> None:
    """Judges the deliveries of a schedule. Ticks `left`, in ms, are still stored."""
    ids: defaultdict[int, set[str]] = defaultdict(set)
    for tick in seen:
        ids[tick.tick_ms].add(tick.message)
    for tick_ms, found in ids.items():
        verdict.check(16, len(found) == 1, f"tick {tick_ms} is the messages {sorted(found)}")
        verdict.check(16, tick_ms % period_ms == 0, f"{tick_ms} is no tick of the schedule")
    if ids:
        missing = {*range(min(ids), max(ids), period_ms)} - {*ids, *left}
        verdict.check(16, not missing, f"ticks are left out: {sorted(missing)}")
