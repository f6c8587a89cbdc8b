"""Topics as operators see them: their policies, and how to be rid of one."""

from dataclasses import dataclass
from typing import Any

from lisa_common.call import Call, Flow, command, script
from lisa_common.keys import TopicKeys, dropped_key, topics_key
from lisa_common.policy import Policy
from lisa_common.protocol.consuming import server_time
from lisa_common.topics import Topic, parse_topic, read_registry
from lisa_common.values import check_name
from lisa_manager.operator.looking import existing

__all__ = ["DEFAULT", "Dropped", "drop_topic", "list_topics", "set_policy"]

DEFAULT = object()
"""Takes the place of a value: the field goes back to its default."""


def list_topics(prefix: str) -> Flow[list[Topic]]:
    """All topics by name."""
    registry = yield from read_registry(prefix)
    return [registry[name] for name in sorted(registry)]


def set_policy(prefix: str, topic: str, changes: dict[str, Any]) -> Flow[Policy]:
    """Changes fields of a topic's policy, and leaves the others as they are; declares a topic that is not there.

    Raises InvalidInput, before anything is written. A policy that is damaged is replaced.
    """
    registry = topics_key(prefix)
    stored: bytes | None = yield command("HGET", registry, check_name("topic", topic))
    known = Topic(topic) if stored is None else parse_topic(topic, stored)
    fields = known.policy.model_dump(exclude_unset=True) | changes
    policy = Policy.of({name: value for name, value in fields.items() if value is not DEFAULT})
    yield command("HSET", registry, topic, policy.dump())
    return policy


@dataclass(frozen=True, slots=True)
class Dropped:
    """What became of a topic that was to be dropped."""

    done: bool
    messages: int
    """Those that it held."""


def drop_topic(prefix: str, topic: str, *, force: bool) -> Flow[Dropped]:
    """Deletes all keys of a topic at once, unless it holds messages and is not forced to.

    That it was dropped stays known for a while: a producer that goes on sending declares the topic anew, and until all
    producers know, managers go on looking after it.
    """
    keys, _ = yield from existing(prefix, topic)
    dropped: Dropped = yield _drop(keys, force=force)
    if dropped.done:
        now = yield server_time()
        # In this order, so that managers see the one or the other at any time.
        yield command("HSET", dropped_key(prefix), topic, now)
        yield command("HDEL", topics_key(prefix), topic)
    return dropped


def _drop(keys: TopicKeys, *, force: bool) -> Call[Dropped]:
    return script("drop", keys, decode=lambda reply: Dropped(bool(reply[0]), reply[1]), force=int(force))
