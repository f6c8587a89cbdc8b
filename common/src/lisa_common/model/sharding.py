"""The shards of a topic: its current ones, and the former ones of each reshard.

A reshard moves nothing. It closes the former shards to new messages; their messages are delivered, retried and aged out
there. So an id is looked up in its current shard and in its former ones: a message is in one of these, and stays there.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar
from zlib import crc32

from lisa_common.model.keys import ShardKeys
from lisa_common.model.policy import DEFAULT_POLICY, Policy
from lisa_common.validation import GENERATED_SUFFIX

__all__ = ["Layout", "by_home", "by_shard", "home"]

T = TypeVar("T")


@dataclass(frozen=True)
class Layout:
    """The shards of one topic."""

    prefix: str
    topic: str
    policy: Policy = DEFAULT_POLICY

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """The numbers of shards before each reshard, and now."""
        return (*self.policy.former, self.policy.shards)

    @cached_property
    def counts_text(self) -> str:
        """The same as text, as closed shards store it."""
        return ",".join(map(str, self.counts))

    @cached_property
    def shards(self) -> tuple[ShardKeys, ...]:
        """The current shards, which get new messages."""
        return self._of(len(self.policy.former), self.policy.shards)

    @cached_property
    def former(self) -> dict[int, tuple[ShardKeys, ...]]:
        """The undrained former shards, by the number of the reshard that closed them, from 0."""
        past, drained = enumerate(self.policy.former), frozenset(self.policy.drained)
        return {number: self._of(number, count) for number, count in past if number not in drained}

    @cached_property
    def served(self) -> tuple[ShardKeys, ...]:
        """All shards that may hold messages."""
        return self.shards + tuple(keys for shards in self.former.values() for keys in shards)

    @cached_property
    def ever(self) -> tuple[ShardKeys, ...]:
        """All shards, drained ones included, whose streams may still exist."""
        return tuple(keys for number, count in enumerate(self.counts) for keys in self._of(number, count))

    def shard(self, number: int, shard: int) -> ShardKeys:
        """A shard after `number` reshards, which may be later than this layout."""
        return ShardKeys(self.prefix, self.topic, f"{shard}.{number}" if number else f"{shard}")

    def home(self, id: str) -> ShardKeys:
        """The shard of a new message."""
        return home(self.shards, id)

    def homes(self, id: str) -> tuple[ShardKeys, ...]:
        """The shards that may hold a message, most likely first."""
        return (self.home(id), *(home(shards, id) for shards in reversed(self.former.values())))

    @property
    def schedule_homes(self) -> tuple[ShardKeys, ...]:
        """The shards that may hold the topic's schedules, all in one of them; the newest first."""
        return (self.shards[0], *(shards[0] for shards in reversed(self.former.values())))

    def _of(self, number: int, count: int) -> tuple[ShardKeys, ...]:
        # Each reshard creates new shards, so that a closed one stays closed.
        if number == 0 and count == 1:
            return (ShardKeys(self.prefix, self.topic),)
        return tuple(self.shard(number, shard) for shard in range(count))


def home(shards: tuple[ShardKeys, ...], id: str) -> ShardKeys:
    """The shard of an id among the shards of one reshard. All ticks of schedules are in the first."""
    return shards[_number(len(shards), id)]


def _number(count: int, id: str) -> int:
    if count == 1:
        return 0
    if id.endswith(GENERATED_SUFFIX) and "@" in id:
        return 0
    return crc32(id.encode()) % count


def by_shard(items: Iterable[T], shard: Callable[[T], ShardKeys]) -> dict[ShardKeys, list[T]]:
    """Groups items by shard; keeps the order of items, and of shards by first appearance."""
    groups: dict[ShardKeys, list[T]] = defaultdict(list)
    for item in items:
        groups[shard(item)].append(item)
    return groups


def by_home(
    shards: tuple[ShardKeys, ...], items: Sequence[T], id_of: Callable[[T], str]
) -> Mapping[ShardKeys, Sequence[T]]:
    """As `by_shard`, by the homes of ids among the shards of one reshard; for many items, as it compares no keys."""
    count = len(shards)
    if count == 1:
        return {shards[0]: items} if items else {}
    groups: dict[int, list[T]] = defaultdict(list)
    for item in items:
        groups[_number(count, id_of(item))].append(item)
    return {shards[number]: group for number, group in groups.items()}
