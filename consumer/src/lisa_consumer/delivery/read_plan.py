"""What a consumer reads, and what a read brings."""

import math
from collections.abc import Set as AbstractSet
from typing import NamedTuple, Self

from lisa_common.model.delivery import Delivery
from lisa_common.model.keys import ShardKeys
from lisa_common.model.sharding import Layout
from lisa_common.protocol.consuming import ReadShards

__all__ = ["KeysByPlace", "ReadPlan", "ReadResult"]

_REJOIN_S = 1.0
"""Time between tries to join a group where a node of a Cluster is away."""


class KeysByPlace(dict[tuple[str, str], ShardKeys]):
    """The keys of shards by topic and shard, each built once."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def __missing__(self, place: tuple[str, str]) -> ShardKeys:
        return self.setdefault(place, ShardKeys(self._prefix, *place))

    def forget(self, topic: str) -> None:
        """Drops those of a topic."""
        for place in [place for place in self if place[0] == topic]:
            del self[place]


class ReadPlan(NamedTuple):
    """The shards to read for some topics. It holds until the layout of one of them changes."""

    layouts: dict[str, Layout]
    shards: ReadShards
    widest: int  # number of shards of the topic with the most
    until: float
    """When to try again to join the group, by the clock of the core; infinity if it is joined in all shards."""

    @classmethod
    def of(
        cls, layouts: dict[str, Layout], joined: AbstractSet[ShardKeys], lacking: AbstractSet[ShardKeys], now: float
    ) -> Self:
        """All shards but those that lack the group."""
        served = [keys for layout in layouts.values() for keys in layout.served]
        shards = ReadShards([keys for keys in served if keys not in lacking])
        until = math.inf if joined >= {*served} else now + _REJOIN_S
        return cls(layouts, shards, max(len(layout.served) for layout in layouts.values()), until)


class ReadResult(NamedTuple):
    """The deliveries of one read."""

    batches: list[tuple[list[Delivery], int]]
    """The deliveries of each shard, and how many of them, from the first on, the server counts as begun."""
    leased_at: float
    """A moment before their leases began or were last renewed, by the clock of the core."""

    @property
    def deliveries(self) -> list[Delivery]:
        """Those of all shards."""
        return [delivery for batch, _ in self.batches for delivery in batch]
