"""The remains of a topic: whatever keeps it from being drained, and its garbage."""

import zlib
from collections.abc import Iterator
from typing import Any

from chaos.arena import PREFIX, Arena
from chaos.history import Left, Letter, now
from chaos.topics import LETTERS, RETURNED
from lisa_common.model.death import read_deaths
from lisa_common.model.failure import read_failure
from lisa_common.model.keys import ShardKeys, copy_of, split_copy, topics_key
from lisa_common.model.record import unpack_record

__all__ = ["is_drained", "unfinished", "write_left", "write_letters"]


def unfinished(admin: Any, keys: ShardKeys) -> Iterator[tuple[str, int]]:
    """Sizes that are all zero for a drained topic."""
    # A dead letter that had a time to live stands in `expiring` until the first sweep after that. The sweep before it
    # set its time, and could not know that the clock would be set forward: at worst `quiet_housekeeping_s` later.
    for name in ("waiting", "retry", "expiring"):
        yield name, admin.zcard(keys.of(name))
    copies = admin.zrange(keys.of("garbage"), 0, -1)
    dead = {split_copy(copy.decode())[1] for copy in copies}
    if keys.topic == RETURNED:
        yield "dead letters to be moved", len(copies)
    yield "messages that are no garbage", max(0, admin.hlen(keys.of("messages")) - len(dead))
    # If an operator has replaced a key, garbage may have lost its failure.
    yield "failures of no garbage", max(0, admin.hlen(keys.of("failures")) - len(copies))
    yield "entries", admin.xlen(keys.of("ready"))
    yield "pending", sum(info["pending"] for info in admin.xinfo_groups(keys.of("ready")))


def is_drained(arena: Arena, topic: str) -> bool:
    """Whether all messages of a topic have ended."""
    shards = arena.layout(topic, quick=True).served
    return not any(size for keys in shards for _, size in unfinished(arena.quick, keys))


def write_left(arena: Arena, topic: str) -> None:
    """Writes the garbage of a topic into the history."""
    for keys in arena.layout(topic).served:
        for name in arena.admin.zrange(keys.of("garbage"), 0, -1):
            group, id = split_copy(name.decode())
            failure = read_failure(arena.admin.hget(keys.of("failures"), copy_of(group, id)))
            reason = failure.reason if failure else "unknown"
            arena.recorder.write(Left(now(), topic, group, id, reason, keys.shard))


def write_letters(arena: Arena) -> None:
    """Writes the messages of the dead letter topic into the history."""
    if not arena.admin.hexists(topics_key(PREFIX), LETTERS):
        return
    for data in arena.admin.hvals(ShardKeys(PREFIX, LETTERS).of("messages")):
        record = unpack_record(data)
        death = read_deaths(record.headers)[0]
        letter = Letter(now(), death.queue, death.group, death.id, death.reason, zlib.crc32(record.body))
        arena.recorder.write(letter)
