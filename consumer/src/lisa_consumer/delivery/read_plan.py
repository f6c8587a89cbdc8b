"""What a consumer reads, and what a read brings."""

from typing import NamedTuple

from lisa_common.model.delivery import Delivery
from lisa_common.model.keys import ShardKeys
from lisa_common.model.sharding import Layout
from lisa_common.protocol.consuming import ReadShards

__all__ = ["KeysByPlace", "ReadPlan", "ReadResult"]


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
