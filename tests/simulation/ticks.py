"""Promise 16, for one schedule that nobody changes: each tick is one message, and none is left out."""

from collections import defaultdict
from collections.abc import Collection, Sequence

from chaos.draining import Room
from chaos.schedule_verdict import tick_ms_of
from chaos.verdict import Verdict
from lisa_common.model.record import unpack_record

__all__ = ["TICKS", "judge", "stored"]

TICKS = "ticks"
"""The topic of the schedule."""


def stored(room: Room) -> set[int]:
    """The ticks whose messages have not ended, in ms."""
    shards = room.layout(TICKS).ever
    records = [unpack_record(data) for keys in shards for data in room.admin.hvals(keys.of("messages"))]
    return {tick_ms_of(record.headers) for record in records}


def judge(verdict: Verdict, seen: Sequence[tuple[int, str]], left: Collection[int], period_ms: int) -> None:
    """Judges the deliveries of a schedule: the tick (in ms) and the message of each. Ticks `left` are still stored."""
    ids: defaultdict[int, set[str]] = defaultdict(set)
    for tick_ms, id in seen:
        ids[tick_ms].add(id)
    for tick_ms, found in ids.items():
        verdict.check(16, len(found) == 1, f"tick {tick_ms} is the messages {sorted(found)}")
        verdict.check(16, tick_ms % period_ms == 0, f"{tick_ms} is no tick of the schedule")
    if ids:
        missing = {*range(min(ids), max(ids), period_ms)} - {*ids, *left}
        verdict.check(16, not missing, f"ticks are left out: {sorted(missing)}")
