"""Doors: brings what the policy of a topic limits to its shards, where the scripts read it.

The registry and a shard may be at different nodes, so no script can write both. Whoever changes limits first writes the
registry, under a new revision, then each door, if that still holds what was read before the registry. So the limits of
an earlier revision never replace those of a later one. Managers do the same for changes that were interrupted.
"""

from collections.abc import Mapping

from lisa_common.model.door import limits_of
from lisa_common.model.keys import ShardKeys, text_of, topics_key
from lisa_common.model.policy import Policy
from lisa_common.model.sharding import Layout
from lisa_common.protocol import managing
from lisa_common.protocol.call import Call, Flow, command
from lisa_common.protocol.consuming import server_time
from lisa_common.protocol.registry import parse_topic, with_revision

__all__ = ["read_limits", "revised", "set_doors", "write_doors", "wrong_doors"]


def revised(before: Policy, after: Policy) -> Flow[Policy]:
    """The policy under a new revision if limits, or the shares of shards in them, have changed."""
    now: int = yield server_time()
    return with_revision(before, after, now)


def read_limits(keys: ShardKeys) -> Call[str]:
    """Reads what the door of a shard limits; empty where it is open."""
    return command("HGET", keys.of("door"), "limits", decode=lambda reply: text_of(reply or b""))


def wrong_doors(layout: Layout) -> Flow[list[ShardKeys]]:
    """The shards of a topic whose doors differ from its policy."""
    doors: list[str] = yield [read_limits(keys) for keys in layout.served]
    return [keys for keys, door in zip(layout.served, doors, strict=True) if door != limits_of(layout, keys)]


def set_doors(prefix: str, topic: str) -> Flow[None]:
    """Makes the doors of a topic as its policy says. When it returns, they are."""
    layout, stored = yield from _read(prefix, topic)
    while True:
        # Drained shards, too: they have shares no more.
        doors: list[str] = yield [read_limits(keys) for keys in layout.ever]
        before = stored
        layout, stored = yield from _read(prefix, topic)
        if stored != before:
            continue
        if not (yield from _write(layout, dict(zip(layout.ever, doors, strict=True)))):
            return


def write_doors(layout: Layout) -> Flow[None]:
    """Makes the doors of a layout that is not in the registry yet."""
    doors: list[str] = yield [read_limits(keys) for keys in layout.ever]
    yield from _write(layout, dict(zip(layout.ever, doors, strict=True)))


def _write(layout: Layout, doors: Mapping[ShardKeys, str]) -> Flow[bool]:
    """Writes the doors that differ from the layout. Returns whether any did."""
    wanted = {keys: limits_of(layout, keys) for keys in doors}
    calls = [managing.set_door(keys, doors[keys], wanted[keys]) for keys in doors if doors[keys] != wanted[keys]]
    if calls:
        yield calls
    return bool(calls)


def _read(prefix: str, topic: str) -> Flow[tuple[Layout, bytes | None]]:
    stored: bytes | None = yield command("HGET", topics_key(prefix), topic)
    return Layout(prefix, topic, parse_topic(topic, stored or b"{}").policy), stored
