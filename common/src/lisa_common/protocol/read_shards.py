"""Shards that are read again and again."""

from collections.abc import Sequence
from itertools import repeat

from lisa_common.model.keys import ShardKeys

__all__ = ["ReadShards"]


class ReadShards(list[ShardKeys]):
    """Shards, with what all reads of them have in common, made once."""

    def __init__(self, keys: Sequence[ShardKeys]) -> None:
        super().__init__(keys)
        self.by_stream = {k.of("ready").encode(): k for k in keys}
        self.streams = (*[k.of("ready") for k in keys], *repeat(">", len(self)))
        """What follows STREAMS in a read of new entries."""
