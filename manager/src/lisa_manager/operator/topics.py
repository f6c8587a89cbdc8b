"""Topics as operators see them: their policies, and how to be rid of one."""

from dataclasses import dataclass
from typing import Any

from lisa_common.call import Call, Flow, command, script
from lisa_common.errors import InvalidInput
from lisa_common.keys import TopicKeys, dropped_key, topics_key
from lisa_common.policy import Policy
from lisa_common.protocol.consuming import server_time
from lisa_common.topics import Topic, amend, dropped_mark, parse_topic, read_mark, read_registry
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
    while True:
        stored: bytes | None = yield command("HGET", topics_key(prefix), check_name("topic", topic))
        known = Topic(topic) if stored is None else parse_topic(topic, stored)
        fields = known.policy.model_dump(exclude_unset=True) | changes
        policy = Policy.of({name: value for name, value in fields.items() if value is not DEFAULT})
        if stored is not None and policy.shards != known.policy.shards:
            raise InvalidInput("policy field shards", policy.shards, "a number for a new topic is; else: topic reshard")
        if stored is None:
            yield from _check_dropped(prefix, topic, policy)
        # Managers, too, write here.
        if (yield amend(prefix, topic, stored, policy)):
            return policy


def _check_dropped(prefix: str, topic: str, policy: Policy) -> Flow[None]:
    mark: bytes | None = yield command("HGET", dropped_key(prefix), topic)
    if mark is not None and read_mark(prefix, topic, mark)[1].policy.shards != policy.shards:
        limit = "another number than that of a topic dropped lately, while producers may still know that, is not"
        raise InvalidInput("policy field shards", policy.shards, limit)


@dataclass(frozen=True, slots=True)
class Dropped:
    """What became of a topic that was to be dropped."""

    done: bool
    messages: int
    """Those that it held."""


def drop_topic(prefix: str, topic: str, *, force: bool) -> Flow[Dropped]:
    """Deletes all keys of a topic, unless it holds messages and is not forced to.

    That it was dropped stays known for a while: a producer that goes on sending declares the topic anew, and until all
    producers know, managers go on looking after it.
    """
    layout = yield from existing(prefix, topic)
    messages = 0
    for keys in layout.ever:
        dropped: Dropped = yield _drop(keys, force=force)
        messages += dropped.messages
        if not dropped.done:
            return Dropped(done=False, messages=messages)
    now = yield server_time()
    # In this order, so that managers see the one or the other at any time.
    yield command("HSET", dropped_key(prefix), topic, dropped_mark(now, layout))
    yield command("HDEL", topics_key(prefix), topic)
    return Dropped(done=True, messages=messages)


def _drop(keys: TopicKeys, *, force: bool) -> Call[Dropped]:
    return script("drop", keys, decode=lambda reply: Dropped(bool(reply[0]), reply[1]), force=int(force))
