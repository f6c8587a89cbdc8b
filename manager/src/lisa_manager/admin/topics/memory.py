"""How much memory topics take, as the server samples it."""

from collections.abc import Sequence
from typing import Final

from lisa_common.model.keys import TOPIC_KEYS, ShardKeys, history_key
from lisa_common.protocol.call import Call, Flow, command
from lisa_manager.queries import layouts_of, read_all

__all__ = ["read_memory"]

_MOST_SHARDS: Final = 16
"""Shards of a topic that are measured; the others are taken to be as large on average. Ids spread evenly."""

_SAMPLES: Final = 20
"""Members by which the server judges the size of a key: its time does not depend on the length."""


def read_memory(prefix: str, topics: Sequence[str]) -> Flow[dict[str, int]]:
    """Returns the memory of these topics in bytes, without those that do not exist.

    Raises what the server says to MEMORY USAGE, which some refuse.
    """
    layouts = yield from layouts_of(prefix, topics)
    measured = {layout.topic: _some(layout.served) for layout in layouts}
    calls = [_usage(keys.of(name)) for shards in measured.values() for keys in shards for name in TOPIC_KEYS]
    calls += [_usage(history_key(prefix, layout.topic)) for layout in layouts]
    rest = iter((yield from read_all(calls)))
    of_shards = {topic: sum(next(rest) for _ in shards for _ in TOPIC_KEYS) for topic, shards in measured.items()}
    return {
        layout.topic: of_shards[layout.topic] * len(layout.served) // len(measured[layout.topic]) + next(rest)
        for layout in layouts
    }


def _some(shards: Sequence[ShardKeys]) -> Sequence[ShardKeys]:
    """At most `_MOST_SHARDS` of them, at equal distances."""
    count = min(len(shards), _MOST_SHARDS)
    return [shards[at * len(shards) // count] for at in range(count)]


def _usage(key: str) -> Call[int]:
    return command("MEMORY", "USAGE", key, "SAMPLES", _SAMPLES, decode=lambda size: size or 0)
