"""How a topic is dropped, beside running producers, consumers and managers."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from lisa_common.errors import OF_THE_SERVER, LisaError, OutcomeUnknown
from lisa_common.model.keys import ShardKeys, history_key, idle_key
from lisa_common.model.sharding import Layout
from lisa_common.protocol import consuming, managing, producing
from lisa_common.protocol.call import Call, Flow, command, script
from lisa_common.protocol.consuming import server_time
from lisa_common.protocol.registry import Topics, dropped_mark, mark_drop, store_policy
from lisa_common.protocol.schedules import parse_definition, read_definitions
from lisa_common.protocol.scheduling import Change, change, settle
from lisa_manager.doors import set_doors
from lisa_manager.existing import existing_as_stored
from lisa_manager.shard_groups import GroupInfo, groups

__all__ = ["Dropped", "drop_topic"]

_ANY: Final[Mapping[ShardKeys, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Dropped:
    """The outcome of a drop of a topic."""

    done: bool
    messages: int
    """Messages that the topic held."""
    schedules: int = 0
    """Schedules that send to it, which were deleted, or that prevent the drop."""
    made_again: int = 0
    """Shards that were deleted before messages were found in another one. Their groups were made again."""


def drop_topic(
    prefix: str, topic: str, *, force: bool, keep_scheduled: bool = False, last: Mapping[ShardKeys, str] = _ANY
) -> Flow[Dropped]:
    """Deletes all keys of a topic; without `force` only if no schedule sends to it and it holds no messages.

    Raises UnknownTopic. With `force`, its schedules are deleted first, as they would declare it again; with
    `keep_scheduled`, a topic that has any is not dropped.

    `last` has the last entries that shards ever had, "0-0" for none: those where more has become ready are not dropped.

    Managers remember the drop for a while and keep serving the shards: a producer that does not know of the drop
    declares the topic again when it sends.
    """
    yield from existing_as_stored(prefix, topic)
    schedules = yield from _schedules_of(prefix, topic)
    if schedules and (keep_scheduled or not force):
        return Dropped(done=False, messages=0, schedules=len(schedules))
    topics = Topics(prefix)
    gone = _Gone()
    try:
        for name in schedules:
            # Without what is due: its messages would go with the topic.
            gone.schedules += [(yield from change(prefix, topics, name, lambda _, __: None, catches_up=False))]
        dropped = yield from _drop(prefix, topic, gone, force=force, last=last)
        # A manager that still knows them finds the marks of their deletion. If these were there, the drop removed them.
        for each in gone.schedules:
            if each.after is not None:
                yield from settle(prefix, topics, each.after)
    except LisaError as error:
        if not gone.schedules and not gone.shards:
            raise
        raise OutcomeUnknown(f"{topic} was dropped in part, drop it again: {error}") from error
    return replace(dropped, schedules=len(schedules))


def _schedules_of(prefix: str, topic: str) -> Flow[list[str]]:
    stored = yield from read_definitions(prefix)
    known = {name: parse_definition(name, text) for name, text in stored.items()}
    return [name for name, each in known.items() if each and each.schedule and each.schedule.topic == topic]


def _drop(prefix: str, topic: str, gone: "_Gone", *, force: bool, last: Mapping[ShardKeys, str]) -> Flow[Dropped]:
    while True:
        layout, stored = yield from existing_as_stored(prefix, topic)
        if not (yield from _drop_shards(layout, gone, force=force, last=last)):
            yield from _make_again(layout, gone)
            if gone.shards and layout.policy.is_limited:
                yield from set_doors(prefix, topic)
            return Dropped(done=False, messages=gone.messages, made_again=len(gone.shards))
        now = yield server_time()
        mark = dropped_mark(now, layout)
        # The mark comes first, so that managers always see the mark or the topic.
        yield mark_drop(layout, mark)
        if (yield store_policy(prefix, topic, stored, None)):
            yield command("UNLINK", history_key(prefix, topic))
            # A reader that was waiting makes its group again at once. From now on it can tell that the topic is gone.
            yield [_drop_shard(keys, force=False, last="") for keys in layout.served]
            if layout.policy.expire_idle_ms is not None:
                yield command("HDEL", idle_key(prefix), topic)
            return Dropped(done=True, messages=gone.messages)
        # A reshard has made new shards meanwhile. Look at them as well.
        yield managing.forget_drop(layout.shards[0], mark)


@dataclass(slots=True)
class _Gone:
    """The parts of a topic that a drop has deleted so far."""

    schedules: list[Change] = field(default_factory=list)
    shards: set[ShardKeys] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)
    messages: int = 0
    """Messages that were dropped, or that prevent the drop."""


def _drop_shards(layout: Layout, gone: _Gone, *, force: bool, last: Mapping[ShardKeys, str]) -> Flow[bool]:
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
        outcomes: list[tuple[bool, int]] = yield [
            _drop_shard(keys, force=force, last=last.get(keys, "")) for keys in shards
        ]
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


def _drop_shard(keys: ShardKeys, *, force: bool, last: str) -> Call[tuple[bool, int]]:
    return script("drop", keys, decode=lambda reply: (bool(reply[0]), reply[1]), force=int(force), last=last)


def _make_again(layout: Layout, gone: _Gone) -> Flow[None]:
    """Makes the groups again in all shards of a topic that was not dropped, and closes its former shards."""
    if not gone.shards:
        return
    joined = [consuming.join(keys, name) for keys in layout.served for name in sorted(gone.groups)]
    closed = [producing.close_shard(keys, []) for keys in _former(layout)]
    if joined or closed:
        yield [*joined, *closed]
