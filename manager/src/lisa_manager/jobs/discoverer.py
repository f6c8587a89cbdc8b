"""The discoverer: keeps the shard table in step with the registry of topics, and ends dropped topics."""

import logging
from collections import Counter
from collections.abc import Iterable
from itertools import compress

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.errors import LisaError
from lisa_common.logs import event
from lisa_common.model.keys import PATTERNS, TOPIC_KEYS, history_key, topics_key
from lisa_common.model.policy import DEFAULT_POLICY, Policy
from lisa_common.model.sharding import Layout
from lisa_common.protocol import managing
from lisa_common.protocol.call import command
from lisa_common.protocol.consuming import server_time
from lisa_common.protocol.registry import REFRESH_S, declare_topic, parse_registry, read_dropped, read_mark, registered
from lisa_common.protocol.replies import pairs
from lisa_manager.problem_log import ProblemLog
from lisa_manager.resharding import CONTENTS, restore_layout
from lisa_manager.shard_table import ShardTable
from lisa_manager.topic_limits import end_limits

__all__ = ["Discoverer"]

logger = logging.getLogger(__name__)

_GRACE_MS = int(6 * REFRESH_S * 1000)
"""How long a dropped topic stays served: producers may send to it until they read the registry again."""

_SENT = tuple(
    name for name in TOPIC_KEYS if name not in {"ready", "closed", "door", "ticks", "busy", "slots", "parked"}
)
"""Keys that only sends and schedules create. A consumer that continues to read makes the stream and its group again."""


class Discoverer:
    """Reads the registry."""

    def __init__(self, connection: AsyncConnection, table: ShardTable) -> None:
        self._connection = connection
        self._table = table
        self._stored: list[bytes] = []
        self._marks: dict[str, bytes] = {}
        self._problems = ProblemLog(logger)
        self.layouts: dict[str, Layout] = {}
        """The layouts of registered topics, by name."""
        self.patterns: bytes | None = None
        """The stored policies of patterns, which are in the registry, too."""

    async def turn(self) -> None:
        """Applies new topics, changed policies and drops. Raises LisaError as the server answers."""
        prefix = self._table.prefix
        # In this order, as a drop writes its mark first.
        stored = await self._connection.call(registered(prefix))
        marks = await self._connection.run(read_dropped(prefix))
        # The registry may hold thousands of topics and seldom changes. A mark may end without a change.
        if stored == self._stored and not marks and not self._marks:
            return
        if stored != self._stored:
            topics = parse_registry(stored).items()
            self._stored, self.layouts = stored, {name: Layout(prefix, name, topic.policy) for name, topic in topics}
            self.patterns = dict(pairs(stored)).get(PATTERNS.encode())
        self._marks = marks
        dropped = {name: read_mark(prefix, name, mark) for name, mark in marks.items()}
        # The registry comes last, as it holds for a shard that is in both.
        new, removed = self._table.update([*(layout for _, layout in dropped.values()), *self.layouts.values()])
        # One line for each topic: a topic may have thousands of shards, and logging delays the other jobs.
        for topic, count in _count_shards(new):
            fields = event("topic_served", topic=topic, shards=count)
            logger.info("serving topic %s, shards: %d", topic, count, extra=fields)
        for topic, count in _count_shards(removed):
            fields = event("topic_removed", topic=topic, shards=count)
            logger.info("removed topic %s, shards: %d", topic, count, extra=fields)
        for name, (at_ms, layout) in dropped.items():
            try:
                await self._finish_drop(layout, at_ms, marks[name])
            except LisaError as error:
                # Neither a Cluster node that is away nor a pattern that the topic cannot follow may delay the others.
                self._problems.report(f"drop of {name}", error, job="discover", topic=name)

    async def adopt(self, name: str, policy: Policy = DEFAULT_POLICY) -> bool:
        """Declares a topic that holds messages but is not in the registry. Returns whether it was missing there."""
        return await self._connection.run(declare_topic(self._table.prefix, name, policy.own_fields)) is not None

    async def _finish_drop(self, layout: Layout, at_ms: int, mark: bytes) -> None:
        declared = self.layouts.get(layout.topic)
        if declared is None:
            done = await self._forget(layout, at_ms)
        else:
            done = {*layout.served} <= {*declared.served} or await self._reconcile(layout, declared, at_ms)
        # The topic may have been dropped or made again since the registry was read; the next turn sees that.
        if done and await self._is_registered(layout.topic) == (declared is not None):
            await self._connection.call(managing.forget_drop(layout.shards[0], mark))
            self._problems.resolve(f"drop of {layout.topic}")

    async def _is_registered(self, topic: str) -> bool:
        stored: bytes | None = await self._connection.call(command("HGET", topics_key(self._table.prefix), topic))
        return stored is not None

    async def _forget(self, layout: Layout, at_ms: int) -> bool:
        """Removes a dropped topic once no producer can send to it.

        Declares it again if one did. Returns whether it is done.
        """
        closed = [keys.of("closed") for keys in layout.ever]
        are_closed = await self._connection.execute([command("EXISTS", key) for key in closed])
        now_ms, *counts = await self._connection.execute(
            [server_time(), *(command("EXISTS", *map(keys.of, _SENT)) for keys in layout.served)]
        )
        if now_ms - at_ms < _GRACE_MS:
            return False
        if not any(counts):
            # They may be left of a drop that was broken off.
            await self._connection.run(end_limits(layout))
            # A topic that was made again has closed shards, too, which must stay so.
            if await self._is_registered(layout.topic):
                return False
            left = [history_key(self._table.prefix, layout.topic), *compress(closed, are_closed)]
            await self._connection.execute([command("UNLINK", key) for key in left])
            return True
        fields = event("topic_declared", topic=layout.topic)
        logger.info("declared topic %s again: it got messages after its drop", layout.topic, extra=fields)
        return await self.adopt(layout.topic, layout.policy)

    async def _reconcile(self, layout: Layout, declared: Layout, at_ms: int) -> bool:
        """Repairs the effects of programs that still use the layout of a dropped topic.

        The topic was declared again with another layout. They may have sent to shards of the old layout only, and
        closed shards of today as former ones. Returns whether nothing is left to repair. Raises LisaError where it
        cannot.
        """
        elsewhere = [keys for keys in layout.served if keys not in declared.served]
        shared = [keys for keys in declared.shards if keys in layout.served]
        now_ms, *counts = await self._connection.execute(
            [
                server_time(),
                *(command("EXISTS", *map(keys.of, CONTENTS)) for keys in elsewhere),
                *(command("EXISTS", keys.of("closed")) for keys in shared),
            ]
        )
        if not any(counts):
            return bool(now_ms - at_ms >= _GRACE_MS)
        tags = ", ".join(keys.tag for keys, count in zip((*elsewhere, *shared), counts, strict=True) if count)
        if not await self._connection.run(restore_layout(layout)):
            raise LisaError(f"former shards are still in use: {tags}")
        fields = event("shards_restored", topic=layout.topic, shards=tags)
        text = "restored the shards of topic %s from before its drop, for %s"
        logger.info(text, layout.topic, tags, extra=fields)
        return True


def _count_shards(tags: Iterable[str]) -> list[tuple[str, int]]:
    """The number of these shards by topic."""
    return sorted(Counter(tag.partition("/")[0] for tag in tags).items())
