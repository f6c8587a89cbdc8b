"""How many entries each topic's streams ever had, and how many its groups have read, as the server counts them."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from lisa_common.model.keys import text_of
from lisa_common.model.sharding import Layout
from lisa_common.protocol.call import Flow, IndependentCalls
from lisa_common.protocol.replies import fields_of
from lisa_manager.queries import chunks, first_error, layouts_of, stream_fields

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
    return (yield from read_traffic_of(layouts, partial=not isinstance(topic, str)))


def read_traffic_of(layouts: Sequence[Layout], *, partial: bool = False) -> Flow[list[TopicTraffic]]:
    """The counters of these topics. With `partial`, a node of a Cluster that is away damages its topics only."""
    by_topic = {layout.topic: TopicTraffic(layout.topic) for layout in layouts}
    for shards in chunks([keys for layout in layouts for keys in layout.served], _SHARDS_AT_ONCE):
        # Stream and groups by one command. It also shows an entry, and one that is pending for each group and consumer.
        replies = yield IndependentCalls(stream_fields(keys, "FULL", "COUNT", 1) for keys in shards)
        for keys, reply in zip(shards, replies, strict=True):
            traffic = by_topic[keys.topic]
            if error := first_error((reply,), partial=partial):
                traffic.damage = f"{keys.tag}: {error}"
                continue
            traffic.added += reply.get("entries-added", 0)
            for group in map(fields_of, reply.get("groups", ())):
                traffic.pending += group["pel-count"]
                if (count := group["entries-read"]) is not None:
                    name = text_of(group["name"])
                    traffic.read[name] = traffic.read.get(name, 0) + count
    return list(by_topic.values())
