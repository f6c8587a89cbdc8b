"""The adopter: serves a topic at once of which a send was heard, not only when the registry is read again.

Anybody who may send may publish any wake. So a wake alone declares nothing, and how many there are costs little: names
are gathered, each once and only so many; a few times a second the server is asked which of them hold messages.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.errors import OF_THE_SERVER, InvalidInput, LisaError
from lisa_common.model.keys import ShardKeys
from lisa_common.protocol.call import command
from lisa_common.validation import MAX_NAME_LENGTH, check_name
from lisa_manager.board import Board
from lisa_manager.jobs.discoverer import Discoverer

__all__ = ["Adopter", "UnknownTopics"]

_MOST = 500
"""Names at once; what is sent to another meanwhile is found as the registry is read again."""

_LONGEST = 2 * MAX_NAME_LENGTH
"""More than the name of any shard has characters."""

_REST_S = 0.2
"""Time between two looks at what was heard."""


class UnknownTopics:
    """Names of wakes that the board does not know, each once and only so many."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._missed = False
        self._heard = asyncio.Event()

    def hear(self, name: str) -> None:
        """Takes note of a name."""
        if len(self._names) < _MOST:
            self._names.add(name[:_LONGEST])
            self._heard.set()

    def miss(self) -> None:
        """Takes note that nobody listened for a while."""
        self._missed = True
        self._heard.set()

    async def take(self) -> tuple[set[str], bool]:
        """The names that were heard since the last time, and whether any may have been missed; waits for either."""
        await self._heard.wait()
        self._heard.clear()
        taken = self._names, self._missed
        self._names, self._missed = set(), False
        return taken


class Adopter:
    """Looks what is behind the names that were heard, and serves it."""

    def __init__(
        self,
        connection: AsyncConnection,
        board: Board,
        discoverer: Discoverer,
        *,
        unknown: UnknownTopics,
        discover: Callable[[], Awaitable[None]],
    ) -> None:
        self._connection = connection
        self._board = board
        self._discoverer = discoverer
        self._unknown = unknown
        self._discover = discover

    async def run(self) -> None:
        """Adopts topics until cancelled. Raises what the server says."""
        while True:
            names, missed = await self._unknown.take()
            # The registry may have been read meanwhile.
            unknown = sorted(names - self._board.topics.keys())
            if await self._adopt(unknown) or missed:
                await self._discover()
            await asyncio.sleep(_REST_S)

    async def _adopt(self, names: Sequence[str]) -> bool:
        """Declares those topics that hold messages, if nobody has. Result: whether there are any."""
        keys = [found for name in names if (found := _keys_of(self._board.prefix, name))]
        held = await self._connection.execute_each([command("EXISTS", k.of("messages")) for k in keys])
        for error in held:
            if isinstance(error, OF_THE_SERVER):
                raise error
        sent_to = [k for k, there in zip(keys, held, strict=True) if not isinstance(there, LisaError) and there]
        for each in sent_to:
            # Of the shards of a topic the registry knows.
            if not each.shard:
                await self._discoverer.adopt(each.topic)
        return bool(sent_to)


def _keys_of(prefix: str, name: str) -> ShardKeys | None:
    """The keys of a topic, or of a shard, by the name that a wake gives it; None for what can be none."""
    topic, _, shard = name.partition("/")
    try:
        return ShardKeys(prefix, check_name("topic", topic), check_name("shard", shard) if shard else "")
    except InvalidInput:
        return None
