"""Promise 15, for handlers that hold their topic back: for so long nothing of it becomes ready."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chaos.history import Clock, Event, Read, Recorder, now
from chaos.recording import RecordingCore
from chaos.timeline import Timeline
from chaos.verdict import Verdict
from lisa_common.model.delivery import Delivery, Entry
from lisa_common.model.keys import ShardKeys
from lisa_common.model.sharding import Layout
from lisa_common.protocol.call import Call, Flow
from lisa_common.protocol.marking import StartMark
from lisa_consumer.delivery.core import ReadResult
from simulation.beginnings import Life
from simulation.links import may_be_lost

__all__ = ["Hold", "HoldingCore", "judge"]

_SLACK_MS = 5.0


@dataclass(frozen=True, slots=True)
class Hold:
    """Shards of a topic are held back for so many ms from a moment between `since` and `until` on."""

    topic: str
    shards: frozenset[str]
    """Those that the worker knew: a reshard may have made others."""
    since: float
    until: float
    ms: int


class HoldingCore(RecordingCore):
    """Records what a worker does, and notes what it reads and marks, and each topic that it asks to hold back."""

    def __init__(self, prefix: str, group: str, name: str | None, recorder: Recorder, holds: list[Hold]) -> None:
        super().__init__(prefix, group, name, recorder)
        self._holds, self.life = holds, Life(group)

    def _fetch(
        self, layouts: dict[str, Layout], batches: list[tuple[ShardKeys, list[Entry]]], *lease: Any
    ) -> Flow[tuple[ReadResult, bool]]:
        self.life.take(batches)
        return super()._fetch(layouts, batches, *lease)

    def _mark_entry(self, keys: ShardKeys, entry: str, begun: StartMark = StartMark.YES) -> Call[bool]:
        self.life.mark(keys, entry, begun)
        return super()._mark_entry(keys, entry, begun)

    def release(self, deliveries: Sequence[Delivery], shut_ms: Mapping[str, int] | None = None) -> Flow[int]:
        """Releases, and notes it."""
        held = {topic: self.topics.recall(topic) for topic in shut_ms or {}}
        known = {topic: frozenset(keys.shard for keys in layout.served) for topic, layout in held.items() if layout}
        since = now()
        released = yield from super().release(deliveries, shut_ms)
        self._holds += [
            Hold(topic, known.get(topic, frozenset()), since, now(), ms) for topic, ms in (shut_ms or {}).items()
        ]
        return released


def judge(verdict: Verdict, holds: Sequence[Hold], events: Sequence[Event], outages: Sequence[float]) -> None:
    """Judges a run in which the server's clock was not set back: ids of entries tell when they were made.

    A server that died, at `outages`, may have lost the hold.
    """
    timeline = Timeline([event for event in events if isinstance(event, Clock)])
    made = {
        (taken.topic, taken.shard, taken.entry) for event in events if isinstance(event, Read) for taken in event.taken
    }
    for hold in holds:
        low = timeline.at_most(hold.since, hold.until) + _SLACK_MS
        high = timeline.at_least(hold.since, hold.until) + hold.ms - _SLACK_MS
        if may_be_lost(outages, hold.since, hold.until + hold.ms / 1000):
            continue
        held = [place for place in made if place[0] == hold.topic and place[1] in hold.shards]
        early = [place for place in held if low < int(place[2].partition("-")[0]) < high]
        verdict.check(15, not early, f"{hold.topic}: held back from {low:.0f} to {high:.0f}, but {sorted(early)}")
