"""The consumers of a topic's groups, as the server has them."""

from dataclasses import dataclass
from typing import Any

from lisa_common.errors import LisaError
from lisa_common.model.keys import ShardKeys, bytes_of, text_of
from lisa_common.protocol.call import Call, Flow, IndependentCalls, command
from lisa_common.protocol.replies import fields_of
from lisa_manager.queries import first_error, require_topic
from lisa_manager.shard_groups import groups

__all__ = ["ConsumerStatus", "list_consumers"]


@dataclass(slots=True)
class ConsumerStatus:
    """A consumer of one group, over all shards of a topic."""

    group: str
    name: str
    """Workers' names end in `~`."""
    delivered: int
    """Messages that it holds."""
    idle_ms: int
    """How long ago it last tried to read, in ms."""


def list_consumers(prefix: str, topic: str) -> Flow[list[ConsumerStatus]]:
    """All consumers, by group and name. One command for each group of each shard. Raises UnknownTopic."""
    layout = yield from require_topic(prefix, topic)
    infos = yield IndependentCalls(groups(keys) for keys in layout.served)
    first_error(infos)
    pairs = [
        (keys, info.name)
        for keys, of_shard in zip(layout.served, infos, strict=True)
        if not isinstance(of_shard, LisaError)
        for info in of_shard
    ]
    replies = yield IndependentCalls(_consumers(keys, group) for keys, group in pairs)
    first_error(replies)
    known: dict[tuple[str, str], ConsumerStatus] = {}
    for (_, group), reply in zip(pairs, replies, strict=True):
        for name, pending, idle_ms in () if isinstance(reply, LisaError) else reply:
            of = known.setdefault((group, name), ConsumerStatus(group, name, 0, idle_ms))
            of.delivered += pending
            of.idle_ms = min(of.idle_ms, idle_ms)
    return [known[place] for place in sorted(known)]


def _consumers(keys: ShardKeys, group: str) -> Call[list[tuple[str, int, int]]]:
    def decode(reply: Any) -> list[tuple[str, int, int]]:
        infos = [fields_of(info) for info in reply]
        return [(text_of(info["name"]), int(info["pending"]), int(info["idle"])) for info in infos]

    return command("XINFO", "CONSUMERS", keys.of("ready"), bytes_of(group), decode=decode)
