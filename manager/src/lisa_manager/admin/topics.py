"""Topics as operators see them: their policies, and how to be rid of one."""

from dataclasses import dataclass, field
from typing import Any

from lisa_common.errors import OF_THE_SERVER, InvalidInput, LisaError
from lisa_common.model.keys import ShardKeys, dropped_key, topics_key
from lisa_common.model.policy import Policy
from lisa_common.model.sharding import Layout
from lisa_common.protocol import consuming, managing, producing
from lisa_common.protocol.call import Call, Flow, command, script
from lisa_common.protocol.consuming import server_time
from lisa_common.protocol.registry import Topic, amend, dropped_mark, parse_topic, read_mark, read_registry
from lisa_common.validation import check_name
from lisa_manager.admin.queries import GroupInfo, existing_as_stored, groups

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
            policy = yield from _as_dropped(prefix, topic, policy)
        # Managers, too, write here.
        if (yield amend(prefix, topic, stored, policy)):
            return policy


def _as_dropped(prefix: str, topic: str, policy: Policy) -> Flow[Policy]:
    """The policy of a topic that is declared anew, in the shards of one that was dropped lately, its former ones too.

    Producers that have not heard of the drop go by all of them.
    """
    mark: bytes | None = yield command("HGET", dropped_key(prefix), topic)
    if mark is None:
        return policy
    dropped = read_mark(prefix, topic, mark)[1].policy
    if dropped.shards != policy.shards:
        limit = "another number than that of a topic dropped lately, while producers may still know that, is not"
        raise InvalidInput("policy field shards", policy.shards, limit)
    past = {name: getattr(dropped, name) for name in ("former", "drained") if getattr(dropped, name)}
    return Policy.of(policy.model_dump(exclude_unset=True) | past) if past else policy


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
    gone = _Gone()
    while True:
        layout, stored = yield from existing_as_stored(prefix, topic)
        if not (yield from _drop_shards(layout, gone, force=force)):
            yield from _make_again(layout, gone)
            return Dropped(done=False, messages=gone.messages, made_again=len(gone.shards))
        now = yield server_time()
        mark = dropped_mark(now, layout)
        # In this order, so that managers see the one or the other at any time.
        yield command("HSET", dropped_key(prefix), topic, mark)
        if (yield amend(prefix, topic, stored, None)):
            return Dropped(done=True, messages=gone.messages)
        # A reshard meanwhile has made shards that nobody has looked at.
        yield managing.retire(layout.shards[0], mark)


@dataclass(slots=True)
class _Gone:
    """What of a topic is gone while it is being dropped."""

    shards: set[ShardKeys] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)
    messages: int = 0
    """Those that were dropped, or else those that are in the way."""


def _drop_shards(layout: Layout, gone: _Gone, *, force: bool) -> Flow[bool]:
    """Drops all shards, or none: all are looked at before one goes. Without force each looks once more as it goes."""
    former = _former(layout)
    if former:
        # As a reshard that broke off may not have done.
        yield [producing.close(keys, []) for keys in former]
    for keys in layout.served:
        gone.groups |= yield from _group_names(keys)
    if not force:
        gone.messages = sum((yield [command("HLEN", keys.of("messages")) for keys in layout.ever]))
        if gone.messages:
            return False
    # Those of before last, as nobody can have sent to them since the look.
    for shards in filter(None, (layout.shards, former)):
        outcomes: list[tuple[bool, int]] = yield [_drop(keys, force=force) for keys in shards]
        gone.messages += sum(messages for _, messages in outcomes)
        gone.shards |= {keys for keys, (done, _) in zip(shards, outcomes, strict=True) if done}
        if not all(done for done, _ in outcomes):
            return False
    return True


def _group_names(keys: ShardKeys) -> Flow[set[str]]:
    try:
        known: list[GroupInfo] = yield groups(keys)
    except OF_THE_SERVER:
        raise
    except LisaError:
        # It has no stream of ours, and so no groups; a topic that is damaged can be dropped as well.
        return set()
    return {group.name for group in known}


def _former(layout: Layout) -> list[ShardKeys]:
    """The shards of before all reshards, drained or not."""
    return [keys for keys in layout.ever if keys not in layout.shards]


def _drop(keys: ShardKeys, *, force: bool) -> Call[tuple[bool, int]]:
    return script("drop", keys, decode=lambda reply: (bool(reply[0]), reply[1]), force=int(force))


def _make_again(layout: Layout, gone: _Gone) -> Flow[None]:
    """Makes the groups of a topic again that lives on, in all shards, and closes those of before a reshard."""
    if not gone.shards:
        return
    joined = [consuming.join(keys, name) for keys in layout.served for name in sorted(gone.groups)]
    closed = [producing.close(keys, []) for keys in _former(layout)]
    if joined or closed:
        yield [*joined, *closed]
