"""The discoverer: keeps the board in step with the registry of topics, and lets dropped topics go."""

import logging

from lisa_common.aio import AsyncConnection
from lisa_common.call import command
from lisa_common.keys import TOPIC_KEYS, topics_key
from lisa_common.layout import Layout
from lisa_common.policy import DEFAULT_POLICY, Policy
from lisa_common.protocol import managing
from lisa_common.protocol.consuming import server_time
from lisa_common.topics import REFRESH_S, parse_registry, read_dropped, read_mark, registered
from lisa_manager.board import Board

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
        for name in sorted(new):
            logger.info("topic %s: serving it", name)
        for name in sorted(gone):
            logger.info("topic %s: gone", name)
        for name, (at_ms, layout) in dropped.items():
            await self._retire(layout, at_ms, marks[name])

    async def adopt(self, name: str, policy: Policy = DEFAULT_POLICY) -> None:
        """Declares a topic that somebody sends to although the registry does not have it."""
        await self._connection.call(command("HSETNX", topics_key(self._board.prefix), name, policy.dump()))

    async def _retire(self, layout: Layout, at_ms: int, mark: bytes) -> None:
        declared = self.layouts.get(layout.topic)
        if declared is None or not {*layout.served} <= {*declared.served}:
            now_ms, *left = await self._connection.execute(
                [server_time(), *(command("EXISTS", *map(keys.of, _SENT)) for keys in layout.served)]
            )
            if now_ms - at_ms < _GRACE_MS:
                return
            if any(left) and declared is None:
                logger.info("topic %s: sent to again since it was dropped", layout.topic)
                await self.adopt(layout.topic, layout.policy)
            elif any(left):
                tags = [keys.tag for keys, count in zip(layout.served, left, strict=True) if count]
                logger.error("topic %s: sent to in shards of before it was dropped: %s", layout.topic, ", ".join(tags))
        await self._connection.call(managing.retire(layout.shards[0], mark))
