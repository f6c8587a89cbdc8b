"""Every Redis key of Lisa, and the names that are built from others.

All keys of a shard share one hash tag, so that each script touches one slot of a Redis Cluster; most topics are one
shard. `lua/README.md` and `docs/keys.md` describe what each key holds.
"""

from dataclasses import dataclass, field
from typing import Any, Final

__all__ = [
    "ABSENT",
    "HISTORY",
    "KEY_TYPES",
    "NO_GROUP",
    "PATTERNS",
    "TOPIC_KEYS",
    "ShardKeys",
    "absent_key",
    "activity_key",
    "beside_key",
    "bytes_of",
    "copy_of",
    "dropped_key",
    "events_channel",
    "history_key",
    "idle_key",
    "managers_key",
    "operations_key",
    "schedules_key",
    "split_copy",
    "text_of",
    "topics_key",
    "wake_channel",
    "wishes_key",
    "workers_key",
]

KEY_TYPES: Final = {
    "waiting": "zset",
    "ready": "stream",
    "messages": "hash",
    "expiring": "zset",
    "finished": "zset",
    "owed": "hash",
    "retry": "zset",
    "failures": "hash",
    "garbage": "zset",
    "closed": "string",
    "door": "hash",
    "ticks": "hash",
    "schedules": "hash",
    "busy": "hash",
    "slots": "zset",
    "parked": "zset",
}
"""The keys of a shard and their types, in the server's words."""

TOPIC_KEYS: Final = tuple(KEY_TYPES)

HISTORY: Final = "history"
"""The name of the key with a topic's samples. It belongs to a topic, not to each of its shards."""

ABSENT: Final = "absent"
"""The name of a key that never exists; see `lisa_common.client.cluster.slots.guarded`."""

NO_GROUP: Final = ""
"""The group of a message that became garbage before any group had it."""


PATTERNS: Final = "*"
"""The field of the registry with the policies of patterns; no topic has that name."""


def beside_key(prefix: str, name: str) -> str:
    """A key that belongs to no topic, by its name; each also has a function of its own."""
    return f"{prefix}:{name}"


def topics_key(prefix: str) -> str:
    """The hash of all topics: topic -> policy; `PATTERNS` -> the policies of patterns."""
    return f"{prefix}:topics"


def dropped_key(prefix: str) -> str:
    """The hash of recently dropped topics: topic -> mark. Producers do not use it."""
    return f"{prefix}:dropped"


def idle_key(prefix: str) -> str:
    """The hash of unused topics that expire: topic -> since when, in ms. Only managers and operators use it."""
    return f"{prefix}:idle"


def activity_key(prefix: str) -> str:
    """The stream of what operators did; see `lisa_manager.admin.activity`."""
    return f"{prefix}:activity"


def operations_key(prefix: str) -> str:
    """The hash of operations over many messages: id -> how far it is; see `lisa_manager.admin.operations`."""
    return f"{prefix}:operations"


def managers_key(prefix: str) -> str:
    """The sorted set of running managers: name -> when it last said so, in ms; see `protocol.managers`."""
    return f"{prefix}:managers"


def workers_key(prefix: str) -> str:
    """The hash of workers: group and name -> what it says of itself; see `lisa_common.protocol.workers`."""
    return f"{prefix}:workers"


def wishes_key(prefix: str) -> str:
    """The hash of what operators want of workers: group and name -> pause or drain."""
    return f"{prefix}:wishes"


def history_key(prefix: str, topic: str) -> str:
    """The stream of a topic's samples, for charts; it expires by itself. See `lisa_manager.admin.topics.history`."""
    return ShardKeys(prefix, topic).of(HISTORY)


def schedules_key(prefix: str) -> str:
    """Where a development version kept all schedules; managers move them to their topics."""
    return f"{prefix}:schedules"


def wake_channel(prefix: str) -> str:
    """The Pub/Sub channel on which sends wake sleeping managers."""
    return f"{prefix}:wake"


def events_channel(prefix: str) -> str:
    """The Pub/Sub channel on which managers publish what they did; only they may write to it."""
    return f"{prefix}:events"


@dataclass(frozen=True, slots=True)
class ShardKeys:
    """The keys of one shard of a topic, all in one slot, so that one script may use them."""

    prefix: str
    topic: str
    shard: str = ""
    """The shard's part of the hash tag, after the topic; empty if the topic has one shard."""
    _known: dict[str, str] = field(default_factory=dict, init=False, repr=False, compare=False)
    _known_together: dict[tuple[str, ...], tuple[str, ...]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    heads: dict[str, tuple[Any, ...]] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The beginnings of commands that are always the same for this shard, by script; whoever needs one adds it."""

    @property
    def tag(self) -> str:
        """The hash tag, which names the shard in logs and wakes. Names of topics contain no slash."""
        return f"{self.topic}/{self.shard}" if self.shard else self.topic

    def of(self, name: str) -> str:
        """The key of a name: one of `TOPIC_KEYS`, `ABSENT`, `pace`, `topics` or `dropped`."""
        # Cached, as every call needs some.
        return self._known.get(name) or self._known.setdefault(name, self._make(name))

    def _make(self, name: str) -> str:
        if name == "dropped":
            return dropped_key(self.prefix)
        if name == "topics":
            return topics_key(self.prefix)
        return f"{self.prefix}:{{{self.tag}}}:{name}"

    def of_each(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """The keys of several names."""
        return self._known_together.get(names) or self._known_together.setdefault(names, tuple(map(self.of, names)))

    def loan(self, group: str, id: str) -> str:
        """The key that says which delivery of a message is lent; it expires by itself."""
        return f"{self.prefix}:{{{self.tag}}}:loan:{copy_of(group, id)}"

    def note(self, id: str) -> str:
        """The key of a gateway's note on a message that has ended; it expires by itself."""
        return f"{self.prefix}:{{{self.tag}}}:note:{id}"

    def query(self, name: str) -> str:
        """The key with what is remembered of a Spark query; it expires by itself."""
        return f"{self.prefix}:{{{self.tag}}}:query:{name}"

    def all(self) -> tuple[str, ...]:
        """All keys that the shard may have, except those that expire by themselves."""
        return tuple(self.of(name) for name in TOPIC_KEYS)


def absent_key(key: str) -> str:
    """The key that never exists, in the shard of another key."""
    return f"{key.rpartition(':')[0]}:{ABSENT}"


def text_of(data: bytes) -> str:
    """A stored name, id or copy as text. Bytes that are not UTF-8 survive the way back through `bytes_of`."""
    return data.decode("utf-8", "surrogateescape")


def bytes_of(text: str) -> bytes:
    """The inverse of `text_of`."""
    return text.encode("utf-8", "surrogateescape")


def copy_of(group: str, id: str) -> str:
    """One group's copy of a message, as `retry`, `failures` and `garbage` name it."""
    return f"{group}/{id}"


def split_copy(copy: str) -> tuple[str, str]:
    """Group and message id of a copy. Group names contain no slash; ids may."""
    group, _, id = copy.partition("/")
    return group, id
