"""The discoverer: keeps the board in step with the registry of topics, and lets dropped topics go."""

import logging

from lisa_common.aio import AsyncConnection
from lisa_common.call import command
from lisa_common.keys import TopicKeys, topics_key
from lisa_common.protocol import managing
from lisa_common.topics import REFRESH_S, dropped_entry, read_registry
from lisa_manager.board import Board

__all__ = ["Discoverer"]

logger = logging.getLogger(__name__)

_GRACE_MS = int(6 * REFRESH_S * 1000)
"""How long a dropped topic is served on: a producer that believes it declared may still have sent to it."""


class Discoverer:
    """Reads the registry."""

    def __init__(self, connection: AsyncConnection, board: Board) -> None:
        self._connection = connection
        self._board = board

    async def turn(self) -> None:
        """Takes over new topics, changed policies and drops."""
        registry = await self._connection.run(read_registry(self._board.prefix))
        new, gone = self._board.update(registry)
        for name in sorted(new):
            logger.info("topic %s: serving it", name)
        for name in sorted(gone):
            logger.info("topic %s: gone", name)
        dropped = [(name, topic.dropped_ms) for name, topic in registry.items() if topic.dropped_ms is not None]
        for name, dropped_ms in dropped:
            await self._retire(name, dropped_ms)

    async def adopt(self, name: str) -> None:
        """Declares a topic that somebody sends to although the registry does not have it."""
        await self._connection.call(command("HSETNX", topics_key(self._board.prefix), name, "{}"))

    async def _retire(self, name: str, dropped_ms: int) -> None:
        keys = TopicKeys(self._board.prefix, name)
        now_ms, left = await self._connection.execute(
            [command("TIME", decode=lambda time: int(time[0]) * 1000), command("EXISTS", *keys.all())]
        )
        if now_ms - dropped_ms < _GRACE_MS:
            return
        entry = dropped_entry(dropped_ms)
        if left:
            logger.info("topic %s: sent to again since it was dropped", name)
            await self._connection.call(command("HSET", topics_key(self._board.prefix), name, "{}"))
        else:
            await self._connection.call(managing.retire(keys, entry.encode()))
