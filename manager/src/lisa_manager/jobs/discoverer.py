"""The discoverer: keeps the board in step with the registry of topics, and lets dropped topics go."""

import logging

from lisa_common.aio import AsyncConnection
from lisa_common.call import command
from lisa_common.keys import TopicKeys, topics_key
from lisa_common.protocol import managing
from lisa_common.protocol.consuming import server_time
from lisa_common.topics import REFRESH_S, Topic, parse_registry, read_dropped, registered
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
        self._stored: list[bytes] = []
        self._registry: dict[str, Topic] = {}

    async def turn(self) -> None:
        """Takes over new topics, changed policies and drops."""
        # In this order, as a drop writes its mark first.
        stored = await self._connection.call(registered(self._board.prefix))
        if stored != self._stored:
            # Not at every turn, as there may be thousands of topics, and seldom a change.
            self._stored, self._registry = stored, parse_registry(stored)
        dropped = await self._connection.run(read_dropped(self._board.prefix))
        new, gone = self._board.update({name: Topic(name) for name in dropped} | self._registry)
        for name in sorted(new):
            logger.info("topic %s: serving it", name)
        for name in sorted(gone):
            logger.info("topic %s: gone", name)
        for name, mark in dropped.items():
            await self._retire(name, mark, declared=name in self._registry)

    async def adopt(self, name: str) -> None:
        """Declares a topic that somebody sends to although the registry does not have it."""
        await self._connection.call(command("HSETNX", topics_key(self._board.prefix), name, "{}"))

    async def _retire(self, name: str, mark: bytes, *, declared: bool) -> None:
        keys = TopicKeys(self._board.prefix, name)
        if not declared:
            now_ms, left = await self._connection.execute([server_time(), command("EXISTS", *keys.all())])
            if mark.isdigit() and now_ms - int(mark) < _GRACE_MS:
                return
            if left:
                logger.info("topic %s: sent to again since it was dropped", name)
                await self.adopt(name)
        await self._connection.call(managing.retire(keys, mark))
