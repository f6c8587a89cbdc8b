"""Every Redis key of Lisa, and the names that are built from others.

All keys of a shard share one hash tag, so that each script touches one slot of a Redis Cluster; most topics are one
shard. What each key holds is told in `lua/README.md` and `docs/keys.md`.
"""

from dataclasses import dataclass, field
from typing import Final

__all__ = [
    "ABSENT",
    "KEY_TYPES",
    "NO_GROUP",
    "TOPIC_KEYS",
    "ShardKeys",
    "absent_key",
    "bytes_of",
    "copy_of",
    "dropped_key",
    "split_copy",
    "text_of",
    "topics_key",
    "wake_channel",
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
}
"""The keys of a topic and their types, as the server calls them."""

TOPIC_KEYS: Final = tuple(KEY_TYPES)

ABSENT: Final = "absent"
"""The name of a topic's key that is never there; see `lisa_common.client.cluster.slots.guarded`."""

NO_GROUP: Final = ""
"""Stands for the group of a message that died before any group had it."""


def topics_key(prefix: str) -> str:
    """The hash of all topics: topic -> policy."""
    return f"{prefix}:topics"


def dropped_key(prefix: str) -> str:
    """The hash of topics that were dropped lately: topic -> when, in ms. Producers have no business with it."""
    return f"{prefix}:dropped"


def wake_channel(prefix: str) -> str:
    """The Pub/Sub channel on which sends wake sleeping managers."""
    return f"{prefix}:wake"


@dataclass(frozen=True, slots=True)
class ShardKeys:
    """The keys of one topic, or of one shard of it: whatever a script may touch at once."""

    prefix: str
    topic: str
    shard: str = ""
    """What the shard adds to the topic's name in the hash tag; nothing where the topic is one."""
    _known: dict[str, str] = field(default_factory=dict, init=False, repr=False, compare=False)
    _known_together: dict[tuple[str, ...], tuple[str, ...]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def tag(self) -> str:
        """The hash tag, by which logs and wakes name the shard. Names of topics hold no slash."""
        return f"{self.topic}/{self.shard}" if self.shard else self.topic

    def of(self, name: str) -> str:
        """The key of one of `TOPIC_KEYS`, or `ABSENT`, or of the registry: `topics` and those that were `dropped`."""
        # Made once, as every call asks for some.
        return self._known.get(name) or self._known.setdefault(name, self._make(name))

    def _make(self, name: str) -> str:
        if name == "dropped":
            return dropped_key(self.prefix)
        if name == "topics":
            return topics_key(self.prefix)
        return f"{self.prefix}:{{{self.tag}}}:{name}"

    def of_each(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """The keys of several names, as a script takes them."""
        return self._known_together.get(names) or self._known_together.setdefault(names, tuple(map(self.of, names)))

    def all(self) -> tuple[str, ...]:
        """All keys that there may be."""
        return tuple(self.of(name) for name in TOPIC_KEYS)


def absent_key(key: str) -> str:
    """The key beside another one of a topic that is never there."""
    return f"{key.rpartition(':')[0]}:{ABSENT}"


def text_of(data: bytes) -> str:
    """A name, an id or a copy as the server has it; what is no UTF-8 is none of ours, and `bytes_of` gives it back."""
    return data.decode("utf-8", "surrogateescape")


def bytes_of(text: str) -> bytes:
    """What `text_of` was given."""
    return text.encode("utf-8", "surrogateescape")


def copy_of(group: str, id: str) -> str:
    """One group's copy of a message, as `retry`, `failures` and `garbage` name it."""
    return f"{group}/{id}"


def split_copy(copy: str) -> tuple[str, str]:
    """Group and message id of a copy. Group names hold no slash, ids may."""
    group, _, id = copy.partition("/")
    return group, id
