"""Topics: their policies, and how to create and drop one."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lisa_common.errors import OF_THE_SERVER, InvalidInput, LisaError
from lisa_common.model.keys import ShardKeys, dropped_key, topics_key
from lisa_common.model.policy import DEFAULT_POLICY, Policy
from lisa_common.model.sharding import Layout
from lisa_common.protocol import consuming, managing, producing
from lisa_common.protocol.call import Call, Flow, command, script
from lisa_common.protocol.consuming import server_time
from lisa_common.protocol.registry import Topic, dropped_mark, parse_topic, read_mark, read_registry, store_policy
from lisa_common.validation import check_name
from lisa_manager.admin.queries import GroupInfo, existing_as_stored, groups
from lisa_manager.doors import revised, set_doors

__all__ = ["DEFAULT", "Dropped", "create_topic", "drop_topic", "list_topics", "set_policy"]

DEFAULT = object()
"""Stands for a value: sets a field back to its default."""


def list_topics(prefix: str) -> Flow[list[Topic]]:
    """All topics by name."""
    registry = yield from read_registry(prefix)
    return [registry[name] for name in sorted(registry)]


def set_policy(prefix: str, topic: str, changes: Mapping[str, Any]) -> Flow[Policy]:
    """Changes fields of a topic's policy, and keeps the others; declares a topic that does not exist.

    Raises InvalidInput before anything is written. Replaces a damaged policy.
    """
    while True:
        stored: bytes | None = yield command("HGET", topics_key(prefix), check_name("topic", topic))
        known = Topic(topic) if stored is None else parse_topic(topic, stored)
        policy = _changed(known.policy, changes)
        if stored is not None and policy.shards != known.policy.shards:
            expected = f"{known.policy.shards}, which only `topic reshard` changes"
            raise InvalidInput("policy field shards", policy.shards, expected)
        if stored is None:
            policy = yield from _as_dropped(prefix, topic, policy)
        policy = yield from revised(known.policy, policy)
        # Managers write here as well.
        if (yield store_policy(prefix, topic, stored, policy)):
            if policy.limits_revision:
                yield from set_doors(prefix, topic)
            return policy


def create_topic(prefix: str, topic: str, fields: Mapping[str, Any]) -> Flow[bool]:
    """Declares a topic with this policy, unless it exists. Returns whether it did; raises as `set_policy` does."""
    check_name("topic", topic)
    policy = yield from _as_dropped(prefix, topic, _changed(DEFAULT_POLICY, fields))
    policy = yield from revised(DEFAULT_POLICY, policy)
    created: bool = yield store_policy(prefix, topic, None, policy)
    if created and policy.limits_revision:
        yield from set_doors(prefix, topic)
    return created


def _changed(policy: Policy, changes: Mapping[str, Any]) -> Policy:
    fields = policy.model_dump(exclude_unset=True) | dict(changes)
    return Policy.of({name: value for name, value in fields.items() if value is not DEFAULT})


def _as_dropped(prefix: str, topic: str, policy: Policy) -> Flow[Policy]:
    """The policy of a topic that is declared again soon after its drop: with the same shards, former ones included.

    Producers that have not read of the drop still use all of them.
    """
    mark: bytes | None = yield command("HGET", dropped_key(prefix), topic)
    if mark is None:
        return policy
    dropped = read_mark(prefix, topic, mark)[1].policy
    if dropped.shards != policy.shards:
        expected = f"{dropped.shards} while producers may still know the topic that was dropped lately"
        raise InvalidInput("policy field shards", policy.shards, expected)
    past = {name: getattr(dropped, name) for name in ("former", "drained") if getattr(dropped, name)}
    return Policy.of(policy.model_dump(exclude_unset=True) | past) if past else policy


@dataclass(frozen=True, slots=True)
class Dropped:
    """The outcome of a drop of a topic."""

    done: bool
    messages: int
    """Messages that the topic held."""
    made_again: int = 0
    """Shards that were deleted before another was found to hold messages. Their groups were made again."""


def drop_topic(prefix: str, topic: str, *, force: bool) -> Flow[Dropped]:
    """Deletes all keys of a topic; without `force` only if it holds no messages. Raises UnknownTopic.

    Managers remember the drop for a while and keep serving the shards: a producer that does not know of the drop
    declares the topic again when it sends.
    """
    gone = _Gone()
    while True:
        layout, stored = yield from existing_as_stored(prefix, topic)
        if not (yield from _drop_shards(layout, gone, force=force)):
            yield from _make_again(layout, gone)
            if gone.shards and layout.policy.is_limited:
                yield from set_doors(prefix, topic)
            return Dropped(done=False, messages=gone.messages, made_again=len(gone.shards))
        now = yield server_time()
        mark = dropped_mark(now, layout)
        # The mark comes first, so that managers always see the mark or the topic.
        yield command("HSET", dropped_key(prefix), topic, mark)
        if (yield store_policy(prefix, topic, stored, None)):
            return Dropped(done=True, messages=gone.messages)
        # A reshard has made new shards meanwhile. Look at them as well.
        yield managing.forget_drop(layout.shards[0], mark)


@dataclass(slots=True)
class _Gone:
    """The parts of a topic that a drop has deleted so far."""

    shards: set[ShardKeys] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)
    messages: int = 0
    """Messages that were dropped, or that prevent the drop."""


def _drop_shards(layout: Layout, gone: _Gone, *, force: bool) -> Flow[bool]:
    """Drops all shards or none: checks all of them first. Without `force`, each is checked again in the script."""
    former = _former(layout)
    if former:
        # An interrupted reshard may not have closed them.
        yield [producing.close_shard(keys, []) for keys in former]
    for keys in layout.served:
        gone.groups |= yield from _group_names(keys)
    if not force:
        gone.messages = sum((yield [command("HLEN", keys.of("messages")) for keys in layout.ever]))
        if gone.messages:
            return False
    # Former shards last, as they are closed: nobody can have sent to them since the check.
    for shards in filter(None, (layout.shards, former)):
        outcomes: list[tuple[bool, int]] = yield [_drop(keys, force=force) for keys in shards]
        gone.messages += sum(messages for _, messages in outcomes)
        gone.shards |= {keys for keys, (done, _) in zip(shards, outcomes, strict=True) if done}
        if not all(done for done, _ in outcomes):
            return False
    return True


def _group_names(keys: ShardKeys) -> Flow[set[str]]:
    try:
        infos: list[GroupInfo] = yield groups(keys)
    except OF_THE_SERVER:
        raise
    except LisaError:
        # The key is no stream, so it has no groups. A damaged topic can be dropped as well.
        return set()
    return {group.name for group in infos}


def _former(layout: Layout) -> list[ShardKeys]:
    """The shards before each reshard, drained or not."""
    return [keys for keys in layout.ever if keys not in layout.shards]


def _drop(keys: ShardKeys, *, force: bool) -> Call[tuple[bool, int]]:
    return script("drop", keys, decode=lambda reply: (bool(reply[0]), reply[1]), force=int(force))


def _make_again(layout: Layout, gone: _Gone) -> Flow[None]:
    """Makes the groups again in all shards of a topic that was not dropped, and closes its former shards."""
    if not gone.shards:
        return
    joined = [consuming.join(keys, name) for keys in layout.served for name in sorted(gone.groups)]
    closed = [producing.close_shard(keys, []) for keys in _former(layout)]
    if joined or closed:
        yield [*joined, *closed]
