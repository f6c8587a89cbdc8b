"""The discoverer: keeps the board in step with the registry of topics, and lets dropped topics go."""

import logging
from collections import Counter
from collections.abc import Iterable

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.errors import OF_THE_SERVER, LisaError
from lisa_common.model.keys import TOPIC_KEYS, topics_key
from lisa_common.model.policy import DEFAULT_POLICY, Policy
from lisa_common.model.sharding import Layout
from lisa_common.protocol import managing
from lisa_common.protocol.call import command
from lisa_common.protocol.consuming import server_time
from lisa_common.protocol.registry import REFRESH_S, parse_registry, read_dropped, read_mark, registered
from lisa_manager.board import Board
from lisa_manager.complaints import Complaints
from lisa_manager.resharding import CONTENTS, take_up

__all__ = ["Discoverer"]

logger = logging.getLogger(__name__)

_GRACE_MS = int(6 * REFRESH_S * 1000)
"""How long a dropped topic is served on: a producer that believes it declared may still have sent to it."""

_SENT = tuple(name for name in TOPIC_KEYS if name != "ready")
"""What only a producer makes: a consumer that goes on reading makes the stream and its group again."""


class Discoverer:
    """Reads the registry."""

    def __init__(self, connection: AsyncConnection, board: Board) -> None:
        self._connection = connection
        self._board = board
        self._stored: list[bytes] = []
        self._marks: dict[str, bytes] = {}
        self._complaints = Complaints(logger)
        self.layouts: dict[str, Layout] = {}
        """Of the topics that the registry has, by name."""

    async def turn(self) -> None:
        """Takes over new topics, changed policies and drops."""
        prefix = self._board.prefix
        # In this order, as a drop writes its mark first.
        stored = await self._connection.call(registered(prefix))
        marks = await self._connection.run(read_dropped(prefix))
        # There may be thousands of topics, and seldom a change. A mark that stays may have to go now.
        if stored == self._stored and not marks and not self._marks:
            return
        if stored != self._stored:
            found = parse_registry(stored).items()
            self._stored, self.layouts = stored, {name: Layout(prefix, name, topic.policy) for name, topic in found}
        self._marks = marks
        dropped = {name: read_mark(prefix, name, mark) for name, mark in marks.items()}
        # Where a shard is in both, what the registry says holds.
        new, gone = self._board.update([*(layout for _, layout in dropped.values()), *self.layouts.values()])
        # A topic may have thousands of shards, and others wait while lines are written.
        for topic, count in _count_shards(new):
            logger.info("topic %s: serving it, shards: %d", topic, count)
        for topic, count in _count_shards(gone):
            logger.info("topic %s: gone, shards: %d", topic, count)
        for name, (at_ms, layout) in dropped.items():
            try:
                await self._retire(layout, at_ms, marks[name])
            except OF_THE_SERVER as error:
                # Its node of a Cluster may be away: that is not to keep back what is new.
                self._complaints.about(f"topic {name}", error)

    async def adopt(self, name: str, policy: Policy = DEFAULT_POLICY) -> bool:
        """Declares a topic that somebody sends to although the registry does not have it; says whether it did."""
        return bool(await self._connection.call(command("HSETNX", topics_key(self._board.prefix), name, policy.dump())))

    async def _retire(self, layout: Layout, at_ms: int, mark: bytes) -> None:
        declared = self.layouts.get(layout.topic)
        if declared is None:
            done = await self._forget(layout, at_ms)
        else:
            done = {*layout.served} <= {*declared.served} or await self._reconcile(layout, declared, at_ms)
        if done:
            await self._connection.call(managing.retire(layout.shards[0], mark))
            self._complaints.settled(f"topic {layout.topic}")

    async def _forget(self, layout: Layout, at_ms: int) -> bool:
        """Lets a topic go once nobody can send to it any more; declares it as it was if somebody has."""
        now_ms, *left = await self._connection.execute(
            [server_time(), *(command("EXISTS", *map(keys.of, _SENT)) for keys in layout.served)]
        )
        if now_ms - at_ms < _GRACE_MS:
            return False
        if not any(left):
            return True
        logger.info("topic %s: sent to again since it was dropped", layout.topic)
        return await self.adopt(layout.topic, layout.policy)

    async def _reconcile(self, layout: Layout, declared: Layout, at_ms: int) -> bool:
        """Looks after those who still go by the layout of a topic that was declared anew with another.

        They may have sent to shards that nobody else knows, and closed, as shards of before, some of today.
        """
        elsewhere = [keys for keys in layout.served if keys not in declared.served]
        shared = [keys for keys in declared.shards if keys in layout.served]
        now_ms, *found = await self._connection.execute(
            [
                server_time(),
                *(command("EXISTS", *map(keys.of, CONTENTS)) for keys in elsewhere),
                *(command("EXISTS", keys.of("closed")) for keys in shared),
            ]
        )
        if not any(found):
            return bool(now_ms - at_ms >= _GRACE_MS)
        tags = ", ".join(keys.tag for keys, there in zip((*elsewhere, *shared), found, strict=True) if there)
        try:
            if await self._connection.run(take_up(layout)):
                logger.info("topic %s: in its shards of before it was dropped again, for %s", layout.topic, tags)
                return True
        except OF_THE_SERVER:
            raise
        except LisaError as error:
            self._complaints.about(f"topic {layout.topic}", error)
            return False
        self._complaints.about(
            f"topic {layout.topic}", LisaError(f"sent to in shards of before it was dropped: {tags}")
        )
        return False


def _count_shards(tags: Iterable[str]) -> list[tuple[str, int]]:
    """How many of these shards each topic has."""
    return sorted(Counter(tag.partition("/")[0] for tag in tags).items())
