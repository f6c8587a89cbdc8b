"""How many entries each topic's streams ever had, and how many its groups have read, as the server counts them."""

from collections.abc import Callable, Sequence
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

    Two commands for each shard. Raises UnknownTopic for one unknown topic; of several, leaves it out.
    """
    layouts = yield from layouts_of(prefix, topic)
    return (yield from read_traffic_of(layouts))


def read_traffic_of(layouts: Sequence[Layout], *, partial: bool = False) -> Flow[list[TopicTraffic]]:
    """The counters of these topics. With `partial`, a node of a Cluster that is away damages its topics only."""
    by_topic = {layout.topic: TopicTraffic(layout.topic) for layout in layouts}
    for shards in chunks([keys for layout in layouts for keys in layout.served], _SHARDS_AT_ONCE):
        replies = yield IndependentCalls(call for keys in shards for call in (_added(keys), _read(keys)))
        for keys, added, read in zip(shards, replies[::2], replies[1::2], strict=True):
            traffic = by_topic[keys.topic]
            if error := first_error((added, read), partial=partial):
                traffic.damage = f"{keys.tag}: {error}"
            else:
                traffic.added += added
                for group, count, pending in read:
                    traffic.pending += pending
                    if count is not None:
                        traffic.read[group] = traffic.read.get(group, 0) + count
    return list(by_topic.values())


def _added(keys: ShardKeys) -> Call[int]:
    return _of_stream("STREAM", keys, lambda reply: int(fields_of(reply)["entries-added"]), 0)


def _read(keys: ShardKeys) -> Call[list[tuple[str, int | None, int]]]:
    def decode(reply: Any) -> list[tuple[str, int | None, int]]:
        infos = [fields_of(info) for info in reply]
        return [(text_of(info["name"]), info["entries-read"], info["pending"]) for info in infos]

    return _of_stream("GROUPS", keys, decode, [])


def _of_stream(what: str, keys: ShardKeys, decode: Callable[[Any], Any], missing: Any) -> Call[Any]:
    def read(reply: Any) -> Any:
        if not isinstance(reply, LisaError):
            return decode(reply)
        if "no such key" in str(reply):
            return missing
        raise reply

    return command("XINFO", what, keys.of("ready"), decode=read, takes_errors=True)
