"""Follows the dead copies of a message into other topics, by their ids."""

from dataclasses import dataclass

from lisa_common.model.death import stems_from
from lisa_common.model.keys import ShardKeys, text_of
from lisa_common.protocol import producing
from lisa_common.protocol.call import Flow
from lisa_common.protocol.producing import Found
from lisa_common.protocol.scanning import literal, scan
from lisa_common.validation import check_id
from lisa_manager.queries import PAGE, list_layouts, require_topic

__all__ = ["Hop", "trace"]


@dataclass(frozen=True, slots=True)
class Hop:
    """A message in a dead letter topic."""

    topic: str
    found: Found
    """Its id and its state: finished, if it was acked within the topic's dedup window."""


def trace(prefix: str, topic: str, id: str) -> Flow[tuple[Hop, ...]]:
    """The dead letters of a message, hop by hop; none where its topic has no dead letter topic. Raises UnknownTopic."""
    check_id(id)
    source = yield from require_topic(prefix, topic)
    if source.policy.dead_letter_topic is None:
        return ()
    layouts = {layout.topic: layout for layout in (yield from list_layouts(prefix))}
    hops, seen = list[Hop](), set[tuple[str, str]]()
    while (target := layouts.get(source.policy.dead_letter_topic or "")) and (source.topic, target.topic) not in seen:
        seen.add((source.topic, target.topic))
        for keys in target.served:
            for dead_id in sorted((yield from _find_ids(keys, source.topic, id))):
                found: Found | None = yield producing.find(keys, dead_id)
                if found:
                    hops.append(Hop(target.topic, found))
        source = target
    return tuple(hops)


def _find_ids(keys: ShardKeys, source: str, id: str) -> Flow[set[str]]:
    pattern = literal(source) + b"/*" + literal(id) + b"[@#]*"
    ids = set[str]()
    for name in ("messages", "finished"):
        pages = scan(keys, name, count=PAGE, match=pattern)
        while not pages.done:
            ids |= {text_of(member) for member, _ in (yield from pages.next_page())}
    return {dead_id for dead_id in ids if stems_from(dead_id, id)}
