"""A few counters of each topic, which tell cheaply whether the topic has changed since somebody looked before."""

from collections.abc import Sequence
from typing import NamedTuple

from lisa_common.model.sharding import Layout
from lisa_common.protocol.call import Flow, IndependentCalls, command
from lisa_manager.admin.topics.traffic import read_traffic_of
from lisa_manager.queries import chunks, first_error

__all__ = ["Fingerprint", "read_fingerprints"]

_SHARDS_AT_ONCE = 250


class Fingerprint(NamedTuple):
    """Counters over all shards and groups. A message that is sent, promoted, read, settled or dead changes one of them.

    Messages that move between waiting and retry at the same moment may leave them as they were.
    """

    added: int
    """Entries that the ready streams have ever had."""
    read: int
    """Entries that all groups have read."""
    pending: int
    stored: int
    garbage: int


def read_fingerprints(layouts: Sequence[Layout]) -> Flow[dict[str, Fingerprint]]:
    """The fingerprints of those topics that can be read. Two commands for each shard, as long as none has garbage."""
    traffic = yield from read_traffic_of(layouts, partial=True)
    kept = yield from _read_kept(layouts)
    return {
        each.topic: Fingerprint(each.added, sum(each.read.values()), each.pending, *kept[each.topic])
        for each in traffic
        if not each.damage and each.topic in kept
    }


def _read_kept(layouts: Sequence[Layout]) -> Flow[dict[str, tuple[int, int]]]:
    """How many messages are stored, and how many copies are garbage."""
    kept = {layout.topic: (0, 0) for layout in layouts}
    for shards in chunks([keys for layout in layouts for keys in layout.served], _SHARDS_AT_ONCE):
        garbage = [keys.of("garbage") for keys in shards]
        # Mostly none has any. One command tells, where all are at one node.
        any_garbage, *stored = yield IndependentCalls(
            [command("EXISTS", *garbage), *(command("HLEN", keys.of("messages")) for keys in shards)]
        )
        letters = [0] * len(shards)
        if any_garbage != 0:
            letters = yield IndependentCalls(command("ZCARD", key) for key in garbage)
        for keys, counts in zip(shards, zip(stored, letters, strict=True), strict=True):
            if first_error(counts, partial=True):
                kept.pop(keys.topic, None)
            elif keys.topic in kept:
                before = kept[keys.topic]
                kept[keys.topic] = before[0] + counts[0], before[1] + counts[1]
    return kept
