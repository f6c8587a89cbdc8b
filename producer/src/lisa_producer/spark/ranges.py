"""Ranges of a consumer's pending entries: one for each task."""

from collections.abc import Sequence

from pyspark.sql.datasource import InputPartition

from lisa_common.model.keys import ShardKeys

__all__ = ["Entries", "cut"]


class Entries(InputPartition):
    """The entries of one task: `count` of a consumer in a shard, after one entry and up to another."""

    def __init__(self, keys: ShardKeys, consumer: str, after: str, last: str, count: int) -> None:
        self.keys = keys
        self.consumer = consumer
        self.after, self.last, self.count = after, last, count
        self.attempt, self.task = "", 0
        """Names what the task notes of its rows; see `LastBatch`."""


def cut(keys: ShardKeys, consumer: str, places: Sequence[str], after: str, last: str, *, size: int) -> list[Entries]:
    """Cuts a shard's part of a micro-batch, given in order, into ranges of `size`; the last range ends at `last`."""
    ranges: list[Entries] = []
    for first in range(0, len(places), size):
        part = places[first : first + size]
        end = part[-1] if len(part) == size else last
        ranges.append(Entries(keys, consumer, after, end, len(part)))
        after = end
    return ranges
