"""Which entries of a read a worker marks as begun."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from lisa_common.model.delivery import Delivery, Entry
from lisa_common.model.keys import ShardKeys

__all__ = ["Batches", "MarkHooks", "check_mark"]

Batches = list[tuple[ShardKeys, list[Entry]]]


class MarkHooks(NamedTuple):
    """What the core asks a worker about marks."""

    count_beginning: Callable[[list[str], list[list[Entry]]], list[int]]
    """How many of each batch of entries, by topic, begin at once."""
    remove: Callable[[Sequence[Delivery]], list[Delivery]]
    """Takes deliveries that are about to be settled. Result: the deliveries that get their marks."""
    inherit: Callable[[Sequence[Delivery]], None]
    """Takes deliveries that the server has marked in their place."""

    def divide(self, batches: Batches, *, at_once: bool) -> tuple[Batches, dict[ShardKeys, str]]:
        """The batches, with waiting entries as not begun, and the last entry of each shard that begins.

        No entry begins yet unless all come `at_once`.
        """
        divided: Batches = []
        marked = {}
        counts = [0] * len(batches)
        if at_once:
            counts = self.count_beginning([keys.topic for keys, _ in batches], [entries for _, entries in batches])
        for (keys, entries), count in zip(batches, counts, strict=True):
            if count:
                marked[keys] = entries[count - 1].entry
            divided.append((keys, entries[:count] + [entry._replace(begun=False) for entry in entries[count:]]))
        return divided, marked


def check_mark(deliveries: list[Delivery], marked: str | None) -> list[Delivery]:
    """The deliveries; as not begun, if the entry that was to carry the mark became no delivery."""
    if marked is None or any(delivery.entry.entry == marked for delivery in deliveries):
        return deliveries
    return [delivery._replace(entry=delivery.entry._replace(begun=False)) for delivery in deliveries]
