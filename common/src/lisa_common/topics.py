"""The registry of topics and their policies, as flows: producers declare in it, managers and operators list it."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache

from lisa_common.call import Flow, command
from lisa_common.errors import InvalidInput
from lisa_common.keys import TopicKeys, dropped_key, topics_key
from lisa_common.policy import DEFAULT_POLICY, Policy
from lisa_common.values import check_name

__all__ = ["REFRESH_S", "Topic", "Topics", "read_dropped", "read_registry"]

logger = logging.getLogger(__name__)

REFRESH_S = 10.0
"""How long a program goes by what it has read; whoever still sends to a dropped topic declares it anew within it."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as the registry has it."""

    name: str
    policy: Policy = DEFAULT_POLICY


def parse_topic(name: str, stored: bytes) -> Topic:
    """A topic from its entry; one whose policy is damaged gets the default policy, and a line in the log."""
    try:
        return Topic(name, Policy.load(stored))
    except ValueError as error:  # InvalidInput is one
        _complain_once(f"topic {name!r} has a damaged policy, the default stands in: {error}")
        return Topic(name)


@cache
def _complain_once(complaint: str) -> None:
    logger.error(complaint)


def read_registry(prefix: str) -> Flow[dict[str, Topic]]:
    """All topics by name. Fields that are no topic names are left out."""
    stored = yield from _read_hash(topics_key(prefix))
    return {name: parse_topic(name, policy) for name, policy in stored.items()}


def read_dropped(prefix: str) -> Flow[dict[str, bytes]]:
    """The marks of topics that were dropped lately, by name."""
    return (yield from _read_hash(dropped_key(prefix)))


def _read_hash(key: str) -> Flow[dict[str, bytes]]:
    reply: list[bytes] = yield command("HGETALL", key)
    found = {}
    for name, stored in zip(reply[::2], reply[1::2], strict=True):
        try:
            found[check_name("topic", name.decode("utf-8", "replace"))] = stored
        except InvalidInput as error:
            _complain_once(f"passed over in {key}: {error}")
    return found


@dataclass(frozen=True, slots=True)
class _Known:
    until: float
    keys: TopicKeys
    policy: Policy
    declared: bool = True


@dataclass(slots=True)
class Topics:
    """What one program knows of topics: their keys, and their policies for `REFRESH_S` seconds."""

    prefix: str
    clock: Callable[[], float] = time.monotonic
    _known: dict[str, _Known] = field(default_factory=dict)

    def resolve(self, topic: str) -> Flow[tuple[TopicKeys, Policy]]:
        """Keys and policy of a topic; raises InvalidInput for a name that cannot be one. Writes nothing."""
        known = self._known.get(check_name("topic", topic))
        if known is None or self.clock() >= known.until:
            known = yield from self._read(topic)
            self._known[topic] = known
        return known.keys, known.policy

    def declare(self, topic: str) -> Flow[None]:
        """Makes a topic that was resolved, with the default policy, unless it is there."""
        known = self._known[topic]
        if known.declared:
            return
        # Whoever declares first, or sets a policy meanwhile, wins.
        yield command("HSETNX", topics_key(self.prefix), topic, "{}")
        self._known[topic] = replace(known, declared=True)

    def _read(self, topic: str) -> Flow[_Known]:
        keys = TopicKeys(self.prefix, topic)
        stored: bytes | None = yield command("HGET", topics_key(self.prefix), topic)
        until = self.clock() + REFRESH_S
        if stored is None:
            return _Known(until, keys, DEFAULT_POLICY, declared=False)
        return _Known(until, keys, parse_topic(topic, stored).policy)
