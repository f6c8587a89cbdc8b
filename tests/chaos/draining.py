"""The remains of a run: whatever keeps a topic from being drained, its garbage, and keys that nobody needs."""

import zlib
from collections.abc import Collection, Iterator
from typing import Any, Protocol

from chaos.history import Left, Letter, Problem, Recorder, now
from chaos.topics import LETTERS, PREFIX, RESHARDED, RETURNED
from lisa_common.client.connection import Connection
from lisa_common.model.death import read_deaths
from lisa_common.model.failure import read_failure
from lisa_common.model.keys import ShardKeys, copy_of, history_key, managers_key, split_copy, topics_key, workers_key
from lisa_common.model.record import unpack_record
from lisa_common.model.sharding import Layout
from lisa_manager.admin.audit.check import check
from lisa_manager.queries import require_topic

__all__ = ["Room", "audit", "is_drained", "keys_left", "owed_to", "unfinished", "write_left", "write_letters"]

_PAGE = 1_000


class Room(Protocol):
    """A run as its judges see it: plain clients of its server, and its history."""

    admin: Any
    quick: Any
    """As `admin`, but it does not wait long for a server that is away."""

    @property
    def recorder(self) -> Recorder:
        """Takes what its judges find."""

    def layout(self, topic: str, *, quick: bool = False) -> Layout:
        """The shards of a topic, as the registry has them now."""


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


def is_drained(room: Room, topic: str) -> bool:
    """Whether all messages of a topic have ended."""
    shards = room.layout(topic, quick=True).served
    return not any(size for keys in shards for _, size in unfinished(room.quick, keys))


def write_left(room: Room, topic: str) -> None:
    """Writes the garbage of a topic into the history."""
    for keys in room.layout(topic).served:
        for name in room.admin.zrange(keys.of("garbage"), 0, -1):
            group, id = split_copy(name.decode())
            failure = read_failure(room.admin.hget(keys.of("failures"), copy_of(group, id)))
            reason = failure.reason if failure else "unknown"
            room.recorder.write(Left(now(), topic, group, id, reason, keys.shard))


def write_letters(room: Room) -> None:
    """Writes the messages of the dead letter topic into the history. A killed server may have lost its declaration."""
    for data in room.admin.hvals(ShardKeys(PREFIX, LETTERS).of("messages")):
        record = unpack_record(data)
        death = read_deaths(record.headers)[0]
        letter = Letter(now(), death.queue, death.group, death.id, death.reason, zlib.crc32(record.body))
        room.recorder.write(letter)


def owed_to(room: Room, topic: str, group: str) -> list[str]:
    """The messages that a group which reads nothing is owed: those that it has not got yet."""
    return sorted({id for keys in room.layout(topic).ever for id in _undelivered(room.admin, keys, group)})


def _undelivered(admin: Any, keys: ShardKeys, group: str) -> Iterator[str]:
    ready = keys.of("ready")
    if not admin.exists(ready):
        return
    infos = admin.xinfo_groups(ready)
    last = next((info["last-delivered-id"] for info in infos if info["name"] == group.encode()), None)
    while last:
        page = admin.xrange(ready, f"({last.decode()}", "+", count=_PAGE)
        yield from (fields[b"id"].decode() for _, fields in page if b"id" in fields and b"g" not in fields)
        last = page[-1][0] if len(page) == _PAGE else None


def audit(room: Room, connection: Connection, topic: str) -> int:
    """Promise 9: every message is in one place. Each finding is a problem. Returns the number of messages."""
    messages = 0
    for keys in connection.run(require_topic(PREFIX, topic)).served:
        report = connection.run(check(keys, mend=False))
        messages += report.messages
        for finding in report.findings:
            room.recorder.write(Problem(now(), 9, f"{finding.topic}: {finding.problem}"))
    return messages


def keys_left(room: Room, topics: Collection[str]) -> set[str]:
    """Promise 11: the keys that a drained run should not have any more."""
    allowed = {topics_key(PREFIX), managers_key(PREFIX), workers_key(PREFIX)}
    for topic in topics:
        # What managers sample, which expires by itself.
        allowed.add(history_key(PREFIX, topic))
        layout = room.layout(topic)
        # Messages that are garbage, what is known of them, and ids that callers chose.
        for name in ("ready", "finished", "garbage", "messages", "failures", "owed", "door"):
            allowed |= {keys.of(name) for keys in layout.served}
        allowed |= {keys.of(name) for name in ("ready", "closed") for keys in layout.ever}
    letters = ShardKeys(PREFIX, LETTERS)
    allowed |= {history_key(PREFIX, LETTERS), *(letters.of(name) for name in ("ready", "messages"))}
    found = {key.decode() for key in room.admin.scan_iter(count=1_000)} - allowed
    # A reshard that broke off early has made groups on shards that never existed.
    return found - {key for key in found if key.startswith(f"{PREFIX}:{{{RESHARDED}/") and _is_empty_stream(room, key)}


def _is_empty_stream(room: Room, key: str) -> bool:
    return bool(room.admin.type(key) == b"stream" and room.admin.xlen(key) == 0)
