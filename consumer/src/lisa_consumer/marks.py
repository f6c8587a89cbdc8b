"""What the reads of a worker mark as begun."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from lisa_common.model.delivery import Delivery, Entry
from lisa_common.model.keys import ShardKeys

__all__ = ["Batches", "Marking", "check_mark"]

Batches = list[tuple[ShardKeys, list[Entry]]]


class Marking(NamedTuple):
    """How a worker decides what the server takes for begun."""

    count_beginning: Callable[[list[str], list[list[Entry]]], list[int]]
    """How many of each batch of entries, by topic, begin at once."""
    leave: Callable[[Sequence[Delivery]], list[Delivery]]
    """What is to be marked when others are settled."""
    inherit: Callable[[Sequence[Delivery]], None]
    """Notes that the server has marked it."""

    def divide(self, batches: Batches, *, at_once: bool) -> tuple[Batches, dict[ShardKeys, str]]:
        """The batches, where entries that have to wait are not begun, and the last entry of each shard that begins.

        None of them begins yet where they do not come `at_once`.
        """
        told: Batches = []
        marked = {}
        counts = [0] * len(batches)
        if at_once:
            counts = self.count_beginning([keys.topic for keys, _ in batches], [entries for _, entries in batches])
        for (keys, entries), count in zip(batches, counts, strict=True):
            if count:
                marked[keys] = entries[count - 1].entry
            told.append((keys, entries[:count] + [entry._replace(begun=False) for entry in entries[count:]]))
        return told, marked


def check_mark(deliveries: list[Delivery], marked: str | None) -> list[Delivery]:
    """The deliveries, none of them begun where the one is passed over that was to carry the mark."""
    if marked is None or any(delivery.entry.entry == marked for delivery in deliveries):
        return deliveries
    return [delivery._replace(entry=delivery.entry._replace(begun=False)) for delivery in deliveries]
