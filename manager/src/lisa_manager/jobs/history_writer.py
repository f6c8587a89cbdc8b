"""The history writer: writes samples of topics for charts at equal intervals."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.model.sharding import Layout
from lisa_common.protocol.consuming import server_time
from lisa_manager.admin.topics import history
from lisa_manager.admin.topics.fingerprints import Fingerprint, read_fingerprints
from lisa_manager.admin.topics.history import Lags
from lisa_manager.admin.topics.status import TopicStatus, read_status_of
from lisa_manager.problem_log import ProblemLog
from lisa_manager.queries import chunks
from lisa_manager.settings import ManagerSettings

__all__ = ["HistoryWriter"]

logger = logging.getLogger(__name__)

_MAX_TOPICS = 1_000
"""Most topics with a history: the first by name, as in metrics."""

_UNCHANGED = 10
"""After so many intervals a sample is written though nothing has changed: a longer gap means that no manager ran."""

_FEWEST_UNCHANGED = 10
"""At least so many topics get such a sample in one turn, or a first one; of more topics, each turn takes its share."""

_AT_ONCE = 20
"""Topics in one pipeline: the replies must not keep the other jobs waiting."""

_REST_S = 0.02


@dataclass(slots=True)
class _Seen:
    """What a manager knows of a topic."""

    tried_ms: int = 0
    """The interval in which it was last to be sampled, whether or not it could be."""
    fingerprint: Fingerprint | None = None
    """As it was at the latest turn; None before the first."""
    is_still: bool = True
    """Whether what was last written holds until the fingerprint changes, except for the times of what waits."""
    content: str = ""
    """What was last written."""
    written_ms: int = 0
    """The interval that it was written for."""
    unchanged_ms: int = 0
    """The latest interval in which it still held."""


class HistoryWriter:
    """Samples the topics that a manager serves. Any number of managers write one sample for each interval."""

    def __init__(
        self, connection: AsyncConnection, settings: ManagerSettings, layouts: Callable[[], Mapping[str, Layout]]
    ) -> None:
        self._connection = connection
        self._prefix = settings.prefix
        self._interval_ms = round(settings.history_s * 1000)
        self._keep_ms = round(settings.history_h * 3_600_000)
        self._lags: dict[str, Lags] = {}
        self._seen: dict[str, _Seen] = {}
        self._problems = ProblemLog(logger)
        self._layouts = layouts

    def note_promoted(self, topic: str, lags_ms: Sequence[tuple[int, int]]) -> None:
        """Notes how late messages became ready: lags, each with a count."""
        if not lags_ms:
            return
        lags = self._lags.get(topic)
        if lags is None:
            if len(self._lags) >= _MAX_TOPICS:
                return
            lags = self._lags[topic] = Lags()
        for lag_ms, count in lags_ms:
            lags.add(lag_ms, count)

    async def turn(self) -> None:
        """Writes the samples of this interval, unless others have."""
        if not self._keep_ms:
            self._lags.clear()
            return
        now: int = await self._connection.call(server_time())
        at_ms = now - now % self._interval_ms
        layouts = self._layouts()
        names = sorted(layouts)[:_MAX_TOPICS]
        self._seen = {name: self._seen.get(name) or _Seen() for name in names}
        self._lags = {topic: lags for topic, lags in self._lags.items() if topic in self._seen}
        periodic = self._take_unchanged(at_ms)
        for some in chunks([layouts[name] for name in names], _AT_ONCE):
            fingerprints = await self._connection.run(read_fingerprints(some))
            await self._sample([each for each in some if each.topic in fingerprints], fingerprints, periodic, at_ms)
            await asyncio.sleep(_REST_S)

    def _take_unchanged(self, at_ms: int) -> set[str]:
        """The topics to sample in this turn even if they have not changed, those first that have waited longest."""
        due = [name for name, seen in self._seen.items() if at_ms - seen.tried_ms >= _UNCHANGED * self._interval_ms]
        most = max(_FEWEST_UNCHANGED, -(-len(self._seen) // _UNCHANGED))
        chosen = sorted(due, key=lambda name: self._seen[name].tried_ms)[:most]
        for name in chosen:
            self._seen[name].tried_ms = at_ms
        return set(chosen)

    async def _sample(
        self, layouts: Sequence[Layout], fingerprints: Mapping[str, Fingerprint], periodic: set[str], at_ms: int
    ) -> None:
        """Samples those topics that have changed since the last turn, and `periodic`."""
        chosen = []
        for layout in layouts:
            topic, fingerprint, seen = layout.topic, fingerprints[layout.topic], self._seen[layout.topic]
            changed = seen.fingerprint not in {None, fingerprint} or not seen.is_still or topic in self._lags
            if changed or topic in periodic:
                chosen.append(layout)
                seen.tried_ms = at_ms
            if not changed:
                seen.unchanged_ms = at_ms
            # Until the change is written.
            seen.fingerprint, seen.is_still = fingerprint, not changed
        # One node of a Cluster may be away; the topics of the others are sampled all the same.
        statuses = (await self._connection.run(read_status_of(chosen, partial=True))) if chosen else []
        by_topic = {layout.topic: layout for layout in chosen}
        sampled = [status for status in statuses if not status.damage]
        for status in sampled:
            await self._write(by_topic[status.topic], fingerprints[status.topic], at_ms, status)
        if sampled:
            await self._unlink_of_dropped([each.topic for each in sampled])

    async def _write(self, layout: Layout, fingerprint: Fingerprint, at_ms: int, status: TopicStatus) -> None:
        topic, lags = layout.topic, self._lags.pop(layout.topic, Lags())
        seen = self._seen[topic]
        content = history.pack(status, fingerprint)
        is_still = not (status.late_ms or status.ready or layout.policy.is_limited)
        is_repeated = seen.content == content and at_ms - seen.written_ms < _UNCHANGED * self._interval_ms
        if is_repeated and not lags.counts:
            seen.is_still = is_still
            return
        contents = {at_ms: content}
        if seen.content and seen.unchanged_ms > seen.written_ms:
            # Else a chart would spread over all of the quiet time what has come since.
            contents = {seen.unchanged_ms: seen.content} | contents
        most = max(1, self._keep_ms // self._interval_ms)
        flow = history.write(self._prefix, topic, contents, lags, most=most, keep_ms=self._keep_ms)
        stored, node = False, self._connection.node_of(layout.shards[0])
        try:
            # One node of a Cluster may be away, or another program has written this key.
            with self._problems.watching(f"history of {topic}", node=node, job="history", topic=topic):
                stored = await self._connection.run(flow)
                seen.content, seen.written_ms, seen.is_still = content, at_ms, is_still
        finally:
            if not stored and lags.counts:
                # They belong to the next sample then; more may have been noted meanwhile.
                self._lags.setdefault(topic, Lags()).merge(lags)

    async def _unlink_of_dropped(self, topics: Sequence[str]) -> None:
        """Deletes what was written of topics that were dropped since this manager looked for topics."""
        # Of a Cluster, only the registry's node may be away.
        with self._problems.watching("history of dropped topics", job="history"):
            await self._connection.run(history.unlink_of_dropped(self._prefix, topics))
