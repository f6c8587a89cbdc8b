"""Topics as operators see them: their policies, and how to be rid of one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lisa_common.call import Call, Flow, command, script
from lisa_common.errors import InvalidInput
from lisa_common.keys import TopicKeys, dropped_key, topics_key
from lisa_common.layout import Layout
from lisa_common.policy import Policy
from lisa_common.protocol import consuming, producing
from lisa_common.protocol.consuming import server_time
from lisa_common.topics import Topic, amend, dropped_mark, parse_topic, read_mark, read_registry
from lisa_common.values import check_name
from lisa_manager.operator.looking import GroupInfo, existing, groups

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
    made_again: int = 0
    """Shards that were gone already when another was found to hold messages; they have their groups again."""


def drop_topic(prefix: str, topic: str, *, force: bool) -> Flow[Dropped]:
    """Deletes all keys of a topic, unless it holds messages and is not forced to.

    That it was dropped stays known for a while: a producer that goes on sending declares the topic anew, and until all
    producers know, managers go on looking after it.
    """
    layout = yield from existing(prefix, topic)
    dropped = yield from _drop_shards(layout, force=force)
    if not dropped.done:
        return dropped
    now = yield server_time()
    # In this order, so that managers see the one or the other at any time.
    yield command("HSET", dropped_key(prefix), topic, dropped_mark(now, layout))
    yield command("HDEL", topics_key(prefix), topic)
    return dropped


def _drop_shards(layout: Layout, *, force: bool) -> Flow[Dropped]:
    """Drops all shards, or none: all are looked at before one goes. Without force each looks once more as it goes."""
    former = [keys for keys in layout.ever if keys not in layout.shards]
    if former:
        # As a reshard that broke off may not have done.
        yield [producing.close(keys, []) for keys in former]
    known = yield [groups(keys) for keys in layout.ever]
    if not force:
        held = sum((yield [command("HLEN", keys.of("messages")) for keys in layout.ever]))
        if held:
            return Dropped(done=False, messages=held)
    gone: list[TopicKeys] = []
    messages = 0
    # Those of before last, as nobody can have sent to them since the look.
    for shards in (layout.shards, former):
        outcomes: list[Dropped] = (yield [_drop(keys, force=force) for keys in shards]) if shards else []
        messages += sum(outcome.messages for outcome in outcomes)
        gone += [keys for keys, outcome in zip(shards, outcomes, strict=True) if outcome.done]
        if not all(outcome.done for outcome in outcomes):
            yield from _make_again(gone, former, dict(zip(layout.ever, known, strict=True)))
            return Dropped(done=False, messages=messages, made_again=len(gone))
    return Dropped(done=True, messages=messages)


def _drop(keys: TopicKeys, *, force: bool) -> Call[Dropped]:
    return script("drop", keys, decode=lambda reply: Dropped(bool(reply[0]), reply[1]), force=int(force))


def _make_again(
    gone: Sequence[TopicKeys], former: Sequence[TopicKeys], known: Mapping[TopicKeys, Sequence[GroupInfo]]
) -> Flow[None]:
    calls: list[Call[Any]] = [consuming.join(keys, group.name) for keys in gone for group in known[keys]]
    calls += [producing.close(keys, []) for keys in gone if keys in former]
    if calls:
        yield calls
