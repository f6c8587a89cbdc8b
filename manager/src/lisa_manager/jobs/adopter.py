"""The adopter: serves an unknown topic as soon as a wake names it, before the registry is read again.

Every client with the right to send can publish any wake. So a wake alone declares nothing, and many wakes cost little:
the adopter gathers tags, each once and up to a limit. A few times a second it asks the server which of them hold
messages or schedules.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.errors import InvalidInput
from lisa_common.model.keys import ShardKeys
from lisa_common.protocol.call import command
from lisa_common.validation import MAX_NAME_LENGTH, check_name
from lisa_manager.jobs.discoverer import Discoverer
from lisa_manager.queries import first_error
from lisa_manager.shard_table import ShardTable

__all__ = ["Adopter", "UnknownShards"]

_MOST = 500
"""Most tags at once; further shards are found when the registry is read again."""

_LONGEST = 2 * MAX_NAME_LENGTH
"""Longer than the tag of any shard, in characters."""

_CONTENTS = ("messages", "schedules")
"""What an undeclared topic is declared for."""

_REST_S = 0.2
"""Time between two looks at the tags."""


class UnknownShards:
    """Tags in wakes that the shard table does not have, each once and up to a limit."""

    def __init__(self) -> None:
        self._tags: set[str] = set()
        self._missed = False
        self._changed = asyncio.Event()

    def add(self, tag: str) -> None:
        """Notes a tag."""
        if len(self._tags) < _MOST:
            self._tags.add(tag[:_LONGEST])
            self._changed.set()

    def mark_missed(self) -> None:
        """Notes that wakes may have been missed."""
        self._missed = True
        self._changed.set()

    async def take(self) -> tuple[set[str], bool]:
        """Waits for tags or missed wakes. Returns the tags since the last time, and whether wakes may be missing."""
        await self._changed.wait()
        self._changed.clear()
        taken = self._tags, self._missed
        self._tags, self._missed = set(), False
        return taken


class Adopter:
    """Serves unknown shards that hold messages or schedules."""

    def __init__(
        self,
        connection: AsyncConnection,
        table: ShardTable,
        discoverer: Discoverer,
        *,
        unknown: UnknownShards,
        discover: Callable[[], Awaitable[None]],
    ) -> None:
        self._connection = connection
        self._table = table
        self._discoverer = discoverer
        self._unknown = unknown
        self._discover = discover

    async def run(self) -> None:
        """Adopts topics until cancelled. Raises LisaError as the server answers."""
        while True:
            tags, missed = await self._unknown.take()
            # The registry may have been read meanwhile.
            unknown = sorted(tags - self._table.shards.keys())
            if await self._adopt(unknown) or missed:
                await self._discover()
            await asyncio.sleep(_REST_S)

    async def _adopt(self, tags: Sequence[str]) -> bool:
        """Declares the undeclared topics of shards that are in use. Returns whether any shard is."""
        shards = [keys for tag in tags if (keys := _parse_tag(self._table.prefix, tag))]
        asked = [(keys, name) for keys in shards for name in _CONTENTS]
        replies = await self._connection.execute_each([command("EXISTS", keys.of(name)) for keys, name in asked])
        first_error(replies)
        used = set[ShardKeys]()
        for (keys, name), reply in zip(asked, replies, strict=True):
            if reply == 1:
                used.add(keys)
                if name == "schedules":
                    self._table.scheduled.add(keys.topic)
        for keys in used:
            # A topic of several shards is in the registry already.
            if not keys.shard:
                await self._discoverer.adopt(keys.topic)
        return bool(used)


def _parse_tag(prefix: str, tag: str) -> ShardKeys | None:
    """The keys of a shard by its tag; None for a tag that no shard can have."""
    topic, _, shard = tag.partition("/")
    try:
        return ShardKeys(prefix, check_name("topic", topic), check_name("shard", shard) if shard else "")
    except InvalidInput:
        return None
