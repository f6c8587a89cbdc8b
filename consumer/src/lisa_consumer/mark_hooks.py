"""Which entries of a read a worker marks as begun."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from lisa_common.model.delivery import Delivery, Entry
from lisa_common.model.keys import ShardKeys

__all__ = ["Batches", "MarkHooks", "count_begun"]

Batches = list[tuple[ShardKeys, list[Entry]]]


class MarkHooks(NamedTuple):
    """What the core asks a worker about marks."""

    count_beginning: Callable[[list[str], list[list[Entry]]], list[int]]
    """How many of each batch of entries, by topic, begin at once."""
    remove: Callable[[Sequence[Delivery]], list[Delivery]]
    """Takes deliveries that are about to be settled. Result: the deliveries that get their marks."""
    inherit: Callable[[Sequence[Delivery]], None]
    """Takes deliveries that the server has marked in their place."""

    def choose(self, batches: Batches) -> dict[ShardKeys, str]:
        """The last entry of each shard that begins at once; that one is marked, for all before it."""
        counts = self.count_beginning([keys.topic for keys, _ in batches], [entries for _, entries in batches])
        return {keys: entries[count - 1].entry for (keys, entries), count in zip(batches, counts, strict=True) if count}


def count_begun(deliveries: Sequence[Delivery], marked: str | None) -> int:
    """How many deliveries of a shard count as begun: none, if the entry that was to carry the mark became none."""
    if marked is None:
        return 0
    return next((number for number, each in enumerate(deliveries, 1) if each.entry.entry == marked), 0)
