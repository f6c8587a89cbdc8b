"""The limits of a topic: brings them from its policy to its shards, into the key `door`, where scripts read them.

The registry and a shard may be at different nodes, so no script can write both. Whoever changes limits first writes the
registry, under a new revision, then each shard, if that still holds what was read before the registry. So the limits of
an earlier revision never replace those of a later one. Managers do the same for changes that were interrupted.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from lisa_common.errors import LisaError
from lisa_common.model.keys import ShardKeys, text_of, topics_key
from lisa_common.model.limits import limits_of, revision_of
from lisa_common.model.policy import Policy
from lisa_common.model.sharding import Layout
from lisa_common.protocol import managing
from lisa_common.protocol.call import Call, Flow, IndependentCalls, command, error_in
from lisa_common.protocol.consuming import server_time
from lisa_common.protocol.registry import parse_topic, with_revision

__all__ = ["apply_limits", "end_limits", "read_limits", "revised", "write_limits", "wrong_shards"]


def revised(before: Policy, after: Policy) -> Flow[Policy]:
    """The policy under a new revision if limits, or the shares of shards in them, have changed."""
    now: int = yield server_time()
    return with_revision(before, after, now)


def read_limits(keys: ShardKeys) -> Call[str]:
    """Reads the limits of a shard; empty where it has none."""
    return command("HGET", keys.of("door"), "limits", decode=lambda reply: text_of(reply or b""))


def _limits_in(shards: Sequence[ShardKeys]) -> Flow[dict[ShardKeys, str]]:
    limits: list[str] = yield [read_limits(keys) for keys in shards]
    return dict(zip(shards, limits, strict=True))


def wrong_shards(layout: Layout) -> Flow[list[ShardKeys]]:
    """Returns the shards of a topic whose limits differ from its policy."""
    limits = yield from _limits_in(layout.served)
    return [keys for keys, stored in limits.items() if stored != limits_of(layout, keys)]


def apply_limits(prefix: str, topic: str) -> Flow[None]:
    """Sets the limits of all shards of a topic as its policy says; raises the error of one that cannot be read last."""
    layout, stored = yield from _read(prefix, topic)
    while True:
        # Drained shards, too: they have shares no more. One may be damaged, or its node be away: the others get theirs.
        limits: list[Any] = yield IndependentCalls(read_limits(keys) for keys in layout.ever)
        before = stored
        layout, stored = yield from _read(prefix, topic)
        if stored != before:
            continue
        known = {keys: each for keys, each in zip(layout.ever, limits, strict=True) if not isinstance(each, LisaError)}
        if not (yield from _write(layout, known)):
            break
    if error := error_in(limits):
        raise error


def write_limits(layout: Layout) -> Flow[None]:
    """Sets the limits of the shards of a layout that is not in the registry yet."""
    yield from _write(layout, (yield from _limits_in(layout.ever)))


def end_limits(layout: Layout) -> Flow[None]:
    """Removes the limits of a dropped topic, unless they are later: then the topic has been declared again."""
    limits = yield from _limits_in(layout.ever)
    last = layout.policy.limits_revision
    if ended := {keys: stored for keys, stored in limits.items() if stored and revision_of(stored) <= last}:
        yield [managing.set_door(keys, stored, "") for keys, stored in ended.items()]


def _write(layout: Layout, limits: Mapping[ShardKeys, str]) -> Flow[bool]:
    """Writes the limits that differ from the layout. Returns whether any did."""
    wanted = {keys: limits_of(layout, keys) for keys in limits}
    calls = [managing.set_door(keys, limits[keys], wanted[keys]) for keys in limits if limits[keys] != wanted[keys]]
    if calls:
        yield calls
    return bool(calls)


def _read(prefix: str, topic: str) -> Flow[tuple[Layout, bytes | None]]:
    stored: bytes | None = yield command("HGET", topics_key(prefix), topic)
    return Layout(prefix, topic, parse_topic(topic, stored or b"{}").policy), stored
