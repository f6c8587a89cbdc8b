"""Where the messages of a topic are: the shards of today, and those from before it was resharded.

A reshard moves nothing. It closes the shards of before to new messages, and what they hold is delivered, retried and
aged out where it is. So an id is looked for where it belongs today and where it belonged before; a message is in one of
these places and stays there.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar
from zlib import crc32

from lisa_common.model.keys import ShardKeys
from lisa_common.model.policy import DEFAULT_POLICY, Policy

__all__ = ["Layout", "by_shard", "home"]

T = TypeVar("T")


@dataclass(frozen=True)
class Layout:
    """The shards of one topic."""

    prefix: str
    topic: str
    policy: Policy = DEFAULT_POLICY

    @cached_property
    def shards(self) -> tuple[ShardKeys, ...]:
        """Where new messages go."""
        return self._of(len(self.policy.former), self.policy.shards)

    @cached_property
    def former(self) -> dict[int, tuple[ShardKeys, ...]]:
        """Where they went before each reshard, by its number; without what is drained."""
        past, drained = enumerate(self.policy.former), frozenset(self.policy.drained)
        return {number: self._of(number, count) for number, count in past if number not in drained}

    @cached_property
    def served(self) -> tuple[ShardKeys, ...]:
        """All shards that may hold messages."""
        return self.shards + tuple(keys for shards in self.former.values() for keys in shards)

    @cached_property
    def ever(self) -> tuple[ShardKeys, ...]:
        """All shards of which something may be left, if only their streams."""
        counts = (*self.policy.former, self.policy.shards)
        return tuple(keys for number, count in enumerate(counts) for keys in self._of(number, count))

    def shard(self, number: int, shard: int) -> ShardKeys:
        """One of the shards after so many reshards, of which this layout may know nothing."""
        return ShardKeys(self.prefix, self.topic, f"{shard}.{number}" if number else f"{shard}")

    def home(self, id: str) -> ShardKeys:
        """The shard of a new message."""
        return home(self.shards, id)

    def homes(self, id: str) -> tuple[ShardKeys, ...]:
        """The shards where a message may be, most likely first."""
        return (self.home(id), *(home(shards, id) for shards in reversed(self.former.values())))

    def _of(self, number: int, count: int) -> tuple[ShardKeys, ...]:
        # Each reshard makes shards of its own, so that one which was closed stays so.
        if number == 0 and count == 1:
            return (ShardKeys(self.prefix, self.topic),)
        return tuple(self.shard(number, shard) for shard in range(count))


def home(shards: tuple[ShardKeys, ...], id: str) -> ShardKeys:
    """Which of the shards of one layout an id belongs to."""
    return shards[crc32(id.encode()) % len(shards)] if len(shards) > 1 else shards[0]


def by_shard(items: Iterable[T], shard: Callable[[T], ShardKeys]) -> dict[ShardKeys, list[T]]:
    """The items by the shard of each, both in the order of their first appearance."""
    found: dict[ShardKeys, list[T]] = defaultdict(list)
    for item in items:
        found[shard(item)].append(item)
    return found
