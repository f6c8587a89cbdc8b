"""The registry of topics and their policies, as flows: producers declare in it, managers and operators list it."""

import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

from lisa_common.call import Flow, command
from lisa_common.errors import InvalidInput
from lisa_common.keys import TopicKeys, topics_key
from lisa_common.policy import DEFAULT_POLICY, Policy
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


@dataclass(slots=True)
class Topics:
    """What one program knows of topics: their keys, and their policies for `REFRESH_S` seconds."""

    prefix: str
    declares: bool = False
    """Whether asking for a topic that is not there makes it, with the default policy."""
    clock: Callable[[], float] = time.monotonic
    _known: dict[str, tuple[float, TopicKeys, Policy]] = field(default_factory=dict)

    def resolve(self, topic: str) -> Flow[tuple[TopicKeys, Policy]]:
        """Keys and policy of a topic; raises InvalidInput for a name that cannot be one."""
        known = self._known.get(topic)
        if known and self.clock() < known[0]:
            return known[1], known[2]
        keys = TopicKeys(self.prefix, check_name("topic", topic))
        policy = yield from self._read(topic)
        self._known[topic] = (self.clock() + REFRESH_S, keys, policy)
        return keys, policy

    def _read(self, topic: str) -> Flow[Policy]:
        registry = topics_key(self.prefix)
        stored: bytes | None = yield command("HGET", registry, topic)
        known = Topic(topic) if stored is None else parse_topic(topic, stored)
        if self.declares and (stored is None or known.dropped_ms is not None):
            # Whoever declares first, or sets a policy meanwhile, wins; only a dropped topic's entry is written over.
            verb = "HSETNX" if stored is None else "HSET"
            yield command(verb, registry, topic, "{}")
        return known.policy
