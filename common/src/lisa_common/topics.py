"""The registry of topics and their policies, as flows: producers declare in it, managers and operators list it."""

import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from lisa_common.call import Call, Flow, command
from lisa_common.errors import InvalidInput
from lisa_common.keys import TopicKeys, topics_key
from lisa_common.policy import DEFAULT_POLICY, Policy
from lisa_common.protocol.managing import retire
from lisa_common.values import check_name

__all__ = ["REFRESH_S", "Topic", "Topics", "read_registry"]

logger = logging.getLogger(__name__)

REFRESH_S = 10.0
"""How long a program goes by the policy it has read. After a drop, a producer declares its topic anew within it."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as the registry has it. A dropped one is kept until no producer can believe it declared."""

    name: str
    policy: Policy = DEFAULT_POLICY
    dropped_ms: int | None = None


def parse_topic(name: str, stored: bytes) -> Topic:
    """A topic from its entry; one whose policy is damaged gets the default policy, and a line in the log."""
    try:
        fields = json.loads(stored)
        if isinstance(fields, dict) and "dropped_ms" in fields:
            return Topic(name, dropped_ms=int(fields["dropped_ms"]))
        return Topic(name, Policy.load(stored))
    except ValueError as error:  # InvalidInput is one
        _complain_once(f"topic {name!r} has a damaged policy, the default stands in: {error}")
        return Topic(name)


@cache
def _complain_once(complaint: str) -> None:
    logger.error(complaint)


def dropped_entry(now_ms: int) -> str:
    """The entry of a topic that was dropped at that time."""
    return json.dumps({"dropped_ms": now_ms})


def read_registry(prefix: str) -> Flow[dict[str, Topic]]:
    """All topics by name, dropped ones among them. Fields that are no topic names are left out."""
    reply: list[bytes] = yield command("HGETALL", topics_key(prefix))
    topics = {}
    for name, stored in zip(reply[::2], reply[1::2], strict=True):
        try:
            topic = check_name("topic", name.decode("utf-8", "replace"))
        except InvalidInput as error:
            _complain_once(f"passed over in {topics_key(prefix)}: {error}")
        else:
            topics[topic] = parse_topic(topic, stored)
    return topics


@dataclass(frozen=True, slots=True)
class _Known:
    until: float
    keys: TopicKeys
    policy: Policy
    declared: bool = True
    dropped: bytes | None = None


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
        # Whoever declares first, or sets a policy meanwhile, wins; only a dropped topic's entry is written over.
        calls: list[Call[Any]] = [command("HSETNX", topics_key(self.prefix), topic, "{}")]
        if known.dropped is not None:
            calls.insert(0, retire(known.keys, known.dropped))
        yield calls
        self._known[topic] = replace(known, declared=True)

    def _read(self, topic: str) -> Flow[_Known]:
        keys = TopicKeys(self.prefix, topic)
        stored: bytes | None = yield command("HGET", topics_key(self.prefix), topic)
        until = self.clock() + REFRESH_S
        if stored is None:
            return _Known(until, keys, DEFAULT_POLICY, declared=False)
        known = parse_topic(topic, stored)
        if known.dropped_ms is not None:
            return _Known(until, keys, known.policy, declared=False, dropped=stored)
        return _Known(until, keys, known.policy)
