"""How many waiting messages fall due in each of equal parts of a time. The server counts them; none is read."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from lisa_common.errors import InvalidInput
from lisa_common.model.keys import ShardKeys
from lisa_common.model.scores import PARKED_MS, whole_ms
from lisa_common.protocol.call import Call, Flow, command
from lisa_common.protocol.consuming import server_time
from lisa_common.validation import check_int
from lisa_manager.queries import read_all, require_topic, scored

__all__ = ["DueCounts", "read_due_counts"]

_SECOND, _MINUTE, _HOUR, _DAY = 1_000, 60_000, 3_600_000, 86_400_000

_STEPS: Final = (
    *(1, 2, 5, 10, 20, 50, 100, 200, 500),
    *(n * _SECOND for n in (1, 2, 5, 10, 15, 30)),
    *(n * _MINUTE for n in (1, 2, 5, 10, 15, 30)),
    *(n * _HOUR for n in (1, 2, 3, 6, 12)),
    *(n * _DAY for n in (1, 2, 7, 14, 28, 91, 182, 364, 728)),
)
"""Lengths of a part, in ms: people read such times at once."""

_MOST_PARTS = 48
_FEWEST_PARTS = 8
_MOST_COUNTS = 4_000
"""Commands of one call, if that leaves `_FEWEST_PARTS`: a topic of many shards gets fewer parts."""

_LAST_MS = PARKED_MS - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DueCounts:
    """Waiting messages by due time. Times are ms of the server's clock."""

    now_ms: int
    start_ms: int
    step_ms: int
    """The length of each part."""
    counts: tuple[int, ...] = ()
    """Messages by part, the first from `start_ms` on."""
    before: int = 0
    """Messages that are due earlier than all parts."""
    after: int = 0
    """Messages that are due later than all parts."""
    parked: int = 0
    """Messages that are due, and wait for their keys; they are in no part."""

    @property
    def end_ms(self) -> int:
        """Where the last part ends."""
        return self.start_ms + len(self.counts) * self.step_ms


def read_due_counts(prefix: str, topic: str, start_ms: int | None, end_ms: int | None) -> Flow[DueCounts]:
    """The waiting messages of a topic from one time to another; None: from the first, to the last.

    Raises UnknownTopic, and what a damaged shard raises. Some commands for each shard, and one for each part.
    """
    for name, value in (("start_ms", start_ms), ("end_ms", end_ms)):
        if value is not None:
            check_int(name, value, 0, _LAST_MS)
    layout = yield from require_topic(prefix, topic)
    now: int = yield server_time()
    shards = layout.served
    ends = yield from read_all([call for keys in shards for call in _ends(keys)])
    dues = [max(0, whole_ms(score)) for found in (*ends[::4], *ends[1::4]) for _, score in found if score <= _LAST_MS]
    totals, parked = sum(ends[2::4]), sum(ends[3::4])
    start = min(dues, default=now) if start_ms is None else start_ms
    end = max((start, *dues)) + 1 if end_ms is None else end_ms
    if end <= start:
        raise InvalidInput("end_ms", end, f"later than start_ms, {start}")
    start, step, parts = _divide(start, end, len(shards))
    edges = [start + at * step for at in range(parts + 1)] if dues else []
    bounds = [("-inf", start - 1), *((f"({low - 1}", low + step - 1) for low in edges[:-1])]
    replies = yield from read_all([_count(keys, low, high) for keys in shards for low, high in bounds])
    before, *counts = (sum(replies[at :: len(bounds)]) for at in range(len(bounds)))
    # Messages move while they are counted.
    after = max(0, totals - parked - before - sum(counts))
    return DueCounts(
        now_ms=now, start_ms=start, step_ms=step, counts=tuple(counts), before=before, after=after, parked=parked
    )


def _divide(start: int, end: int, shards: int) -> tuple[int, int, int]:
    """Where the first part begins, how long parts are, and how many there are."""
    most = max(_FEWEST_PARTS, min(_MOST_PARTS, _MOST_COUNTS // shards))
    step = next((step for step in _STEPS if end - start // step * step <= most * step), _STEPS[-1])
    start -= start % step
    return start, step, min(most, -(-(end - start) // step))


def _ends(keys: ShardKeys) -> Sequence[Call[Any]]:
    waiting = keys.of("waiting")
    last = ("ZRANGE", waiting, f"({PARKED_MS}", "-inf", "BYSCORE", "REV", "LIMIT", 0, 1, "WITHSCORES")
    return (
        command("ZRANGE", waiting, 0, 0, "WITHSCORES", decode=scored),
        command(*last, decode=scored),
        command("ZCARD", waiting),
        _count(keys, PARKED_MS, f"({2 * PARKED_MS}"),
    )


def _count(keys: ShardKeys, low: int | str, high: int | str) -> Call[int]:
    return command("ZCOUNT", keys.of("waiting"), low, high)
