"""How many entries each topic's streams ever had, and how many its groups have read, as the server counts them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from lisa_common.errors import LisaError
from lisa_common.model.keys import ShardKeys, text_of
from lisa_common.model.sharding import Layout
from lisa_common.protocol.call import Call, Flow, IndependentCalls, command
from lisa_common.protocol.replies import fields_of
from lisa_manager.queries import chunks, first_error, layouts_of

__all__ = ["TopicTraffic", "read_traffic", "read_traffic_of"]

_SHARDS_AT_ONCE = 1_000


@dataclass(slots=True)
class TopicTraffic:
    """The counters of one topic, over all shards that it has now. They begin anew when a stream or group does."""

    topic: str
    added: int = 0
    """Entries that the ready streams have ever had."""
    read: dict[str, int] = field(default_factory=dict)
    """Entries that each group has read or passed; groups without a count at the server are missing."""
    pending: int = 0
    """Entries that groups have read and not settled, over all groups."""
    damage: str = ""
    """Why a shard could not be read. What could not be read is not counted."""


def read_traffic(prefix: str, topic: str | Sequence[str] | None = None) -> Flow[list[TopicTraffic]]:
    """The counters of one topic, of several or of all, by name, except those of damaged shards.

    One command for each shard. Raises UnknownTopic for one unknown topic; of several, leaves it out.
    """
    layouts = yield from layouts_of(prefix, topic)
    return (yield from read_traffic_of(layouts))


def read_traffic_of(layouts: Sequence[Layout], *, partial: bool = False) -> Flow[list[TopicTraffic]]:
    """The counters of these topics. With `partial`, a node of a Cluster that is away damages its topics only."""
    by_topic = {layout.topic: TopicTraffic(layout.topic) for layout in layouts}
    for shards in chunks([keys for layout in layouts for keys in layout.served], _SHARDS_AT_ONCE):
        replies = yield IndependentCalls(map(_counters, shards))
        for keys, reply in zip(shards, replies, strict=True):
            traffic = by_topic[keys.topic]
            if error := first_error((reply,), partial=partial):
                traffic.damage = f"{keys.tag}: {error}"
                continue
            added, read = reply
            traffic.added += added
            for group, count, pending in read:
                traffic.pending += pending
                if count is not None:
                    traffic.read[group] = traffic.read.get(group, 0) + count
    return list(by_topic.values())


def _counters(keys: ShardKeys) -> Call[tuple[int, list[tuple[str, int | None, int]]]]:
    """Entries that a stream has ever had; and of each group its name, entries read, and entries pending."""

    def decode(reply: Any) -> tuple[int, list[tuple[str, int | None, int]]]:
        if isinstance(reply, LisaError):
            if "no such key" in str(reply):
                return 0, []
            raise reply
        stream = fields_of(reply)
        groups = [fields_of(group) for group in stream["groups"]]
        return int(stream["entries-added"]), [
            (text_of(group["name"]), group["entries-read"], group["pel-count"]) for group in groups
        ]

    # Stream and groups by one command. It also shows an entry, and one that is pending for each group and consumer.
    return command("XINFO", "STREAM", keys.of("ready"), "FULL", "COUNT", 1, decode=decode, takes_errors=True)
