"""How a topic is dropped, beside running producers, consumers and managers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from lisa_common.errors import LisaError, OutcomeUnknown
from lisa_common.model.keys import ShardKeys, history_key, idle_key, topics_key
from lisa_common.model.policy import Policy
from lisa_common.model.sharding import Layout
from lisa_common.protocol import consuming, producing
from lisa_common.protocol.call import Call, Flow, IndependentCalls, command, script
from lisa_common.protocol.registry import mark_drop, parse_topic, store_policy
from lisa_common.protocol.replies import numbers
from lisa_common.validation import check_bool
from lisa_manager.queries import first_error, groups, require_stored_topic
from lisa_manager.topic_limits import apply_limits

__all__ = ["Dropped", "drop_shard", "drop_topic"]

_ANY: Final[Mapping[ShardKeys, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Dropped:
    """The outcome of a drop of a topic."""

    done: bool
    messages: int
    """Messages that the topic held."""
    schedules: int = 0
    """Schedules that the topic had."""


def drop_topic(
    prefix: str, topic: str, *, force: bool, last: Mapping[ShardKeys, str] = _ANY, seen: Policy | None = None
) -> Flow[Dropped]:
    """Deletes all keys of a topic; without `force` only if it has no schedules and holds no messages.

    `last` has the last entries that shards ever had, "0-0" for none: those where more has become ready are not dropped,
    and no topic that has schedules is. With `seen`, a topic that has another policy by now is not dropped. Raises
    UnknownTopic.

    Managers remember the drop for a while and keep serving the shards: a producer that does not know of the drop
    declares the topic again when it sends. So does a manager where a message has come during the drop.
    """
    check_bool("force", force)
    gone = _Gone()
    try:
        return (yield from _drop(prefix, topic, gone, force=force, last=last, seen=seen))
    except LisaError as error:
        if gone.is_unregistered:
            raise OutcomeUnknown(f"{topic} was dropped, but streams without messages may be left: {error}") from error
        if gone.shards:
            raise OutcomeUnknown(f"{topic} was dropped in part, drop it again: {error}") from error
        raise


def _drop(
    prefix: str, topic: str, gone: "_Gone", *, force: bool, last: Mapping[ShardKeys, str], seen: Policy | None
) -> Flow[Dropped]:
    while True:
        layout, stored = yield from require_stored_topic(prefix, topic)
        is_changed = seen is not None and layout.policy != seen
        if is_changed or not (yield from _drop_shards(layout, gone, force=force, last=last)):
            yield from _make_again(layout, gone)
            return Dropped(done=False, messages=gone.messages, schedules=gone.schedules)
        # The mark comes first, so that managers always see the mark or the topic.
        yield from mark_drop(layout)
        if (yield store_policy(prefix, topic, stored, None)):
            gone.is_unregistered = True
            # Again, as a manager that saw both has forgotten the drop.
            yield from mark_drop(layout)
            yield command("UNLINK", history_key(prefix, topic))
            # A reader that was waiting makes its group again at once. From now on it can tell that the topic is gone.
            # A manager that was moving the schedules may have brought them back.
            # Limits tell the dropped topic from one that was declared anew meanwhile.
            registered: Call[bytes | None] = command("HGET", topics_key(prefix), topic)
            anew = _shards_of(prefix, topic, (yield registered))
            # All that it ever had: a drained shard may have kept its door.
            if rest := [keys for keys in layout.ever if keys not in anew]:
                scheduled, revision = force and not last, layout.policy.limits_revision
                yield [drop_shard(keys, force=False, scheduled=scheduled, revision=revision) for keys in rest]
            if (yield registered) is not None:
                # Its own may have found the former ones in their place.
                yield from apply_limits(prefix, topic)
            if layout.policy.expire_idle_ms is not None:
                yield command("HDEL", idle_key(prefix), topic)
            return Dropped(done=True, messages=gone.messages, schedules=gone.schedules)
        # A reshard has made new shards meanwhile: look at them as well. Or another has dropped it: the mark stays.


@dataclass(slots=True)
class _Gone:
    """The parts of a topic that a drop has deleted so far."""

    shards: set[ShardKeys] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)
    messages: int = 0
    """Messages that were dropped, or that prevent the drop."""
    schedules: int = 0
    """Likewise schedules."""
    is_unregistered: bool = False


def _drop_shards(layout: Layout, gone: _Gone, *, force: bool, last: Mapping[ShardKeys, str]) -> Flow[bool]:
    """Drops all shards or none: checks all of them first. With `last`, each is checked again in the script."""
    former = _former(layout)
    if former:
        # An interrupted reshard may not have closed them.
        yield [producing.close_shard(layout, keys) for keys in former]
    if last or not force:
        gone.schedules = sum((yield [command("HLEN", keys.of("schedules")) for keys in layout.ever]))
        if gone.schedules:
            return False
    if not force:
        gone.messages = sum((yield [command("HLEN", keys.of("messages")) for keys in layout.ever]))
        if gone.messages:
            return False
    if not force and not last:
        # They go after the topic. A message that comes until then keeps its shard, with its groups and known ids.
        return True
    infos = yield IndependentCalls(groups(keys) for keys in layout.served)
    first_error(infos)
    # A key that is no stream has no groups. A damaged topic can be dropped as well.
    gone.groups |= {group.name for of_shard in infos if not isinstance(of_shard, LisaError) for group in of_shard}
    # Former shards last, as they are closed: nobody can have sent to them since the check.
    for shards in filter(None, (layout.shards, former)):
        scheduled = force and not last
        calls = [drop_shard(keys, force=force, scheduled=scheduled, last=last.get(keys, "")) for keys in shards]
        if not (yield from _drop_each(shards, calls, gone)):
            return False
    return True


def _drop_each(shards: Sequence[ShardKeys], calls: Sequence[Call[list[int]]], gone: _Gone) -> Flow[bool]:
    """Notes what is gone, also where one shard fails. Returns whether all are."""
    replies: list[Any] = yield IndependentCalls(calls)
    outcomes = {keys: reply for keys, reply in zip(shards, replies, strict=True) if isinstance(reply, list)}
    gone.messages += sum(messages for _, messages, _ in outcomes.values())
    gone.schedules += sum(schedules for *_, schedules in outcomes.values())
    gone.shards |= {keys for keys, (done, *_) in outcomes.items() if done}
    if error := first_error(replies):
        raise error
    return all(done for done, *_ in outcomes.values())


def _shards_of(prefix: str, topic: str, stored: bytes | None) -> tuple[ShardKeys, ...]:
    """The shards of a stored policy, none where there is none."""
    return () if stored is None else Layout(prefix, topic, parse_topic(topic, stored).policy).ever


def _former(layout: Layout) -> list[ShardKeys]:
    """The shards before each reshard, drained or not."""
    return [keys for keys in layout.ever if keys not in layout.shards]


def drop_shard(keys: ShardKeys, *, force: bool, scheduled: bool, last: str = "", revision: int = -1) -> Call[list[int]]:
    """Drops a shard; its limits up to a revision, too, if that is given, which ends the drop."""
    return script(
        *("drop", keys),
        decode=partial(numbers, count=3),
        force=int(force),
        scheduled=int(scheduled),
        last=last,
        revision=revision,
    )


def _make_again(layout: Layout, gone: _Gone) -> Flow[None]:
    """Makes the groups again in all shards of a topic that was not dropped, and closes its former shards."""
    if not gone.shards:
        return
    joined = [consuming.join(keys, name) for keys in layout.served for name in sorted(gone.groups)]
    closed = [producing.close_shard(layout, keys) for keys in _former(layout)]
    if joined or closed:
        yield [*joined, *closed]
