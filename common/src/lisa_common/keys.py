"""Every Redis key of Lisa, and the two names that are built from others.

All keys of a topic share one hash tag, so that each script touches one slot of a Redis Cluster. What each key holds is
told in `lua/README.md` and `docs/keys.md`.
"""

from dataclasses import dataclass, field
from typing import Final

__all__ = [
    "NO_GROUP",
    "TOPIC_KEYS",
    "TopicKeys",
    "copy_of",
    "dropped_key",
    "split_copy",
    "topics_key",
    "wake_channel",
]

TOPIC_KEYS: Final = (
    "waiting",
    "ready",
    "messages",
    "expiring",
    "finished",
    "owed",
    "retry",
    "failures",
    "garbage",
)

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
class TopicKeys:
    """The keys of one topic."""

    prefix: str
    topic: str
    _known: dict[tuple[str, ...], tuple[str, ...]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def of(self, name: str) -> str:
        """The key of one of `TOPIC_KEYS`, or of the topics that were `dropped`."""
        if name == "dropped":
            return dropped_key(self.prefix)
        return f"{self.prefix}:{{{self.topic}}}:{name}"

    def of_each(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """The keys of several names. They are made once, as every call of a script asks for its own."""
        known = self._known.get(names)
        if known is None:
            known = self._known[names] = tuple(map(self.of, names))
        return known

    def all(self) -> tuple[str, ...]:
        """All keys that the topic may have."""
        return tuple(self.of(name) for name in TOPIC_KEYS)


def copy_of(group: str, id: str) -> str:
    """One group's copy of a message, as `retry`, `failures` and `garbage` name it."""
    return f"{group}/{id}"


def split_copy(copy: str) -> tuple[str, str]:
    """Group and message id of a copy. Group names hold no slash, ids may."""
    group, _, id = copy.partition("/")
    return group, id
