"""The consumers of a topic's groups, as the server has them."""

from dataclasses import dataclass

from lisa_common.errors import LisaError
from lisa_common.model.keys import text_of
from lisa_common.protocol.call import Flow, IndependentCalls
from lisa_manager.queries import consumers, first_error, groups, require_topic

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
    replies = yield IndependentCalls(consumers(keys, group) for keys, group in pairs)
    first_error(replies)
    known: dict[tuple[str, str], ConsumerStatus] = {}
    for (_, group), reply in zip(pairs, replies, strict=True):
        for info in () if isinstance(reply, LisaError) else reply:
            name, idle_ms = text_of(info["name"]), info["idle"]
            of = known.setdefault((group, name), ConsumerStatus(group, name, 0, idle_ms))
            of.delivered += info["pending"]
            of.idle_ms = min(of.idle_ms, idle_ms)
    return [known[place] for place in sorted(known)]
