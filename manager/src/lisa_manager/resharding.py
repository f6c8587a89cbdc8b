"""Resharding: new messages go to new shards; stored messages stay in their former shards until they are done."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from lisa_common.errors import InvalidInput, OutcomeUnknown, UnknownTopic
from lisa_common.model.keys import TOPIC_KEYS, ShardKeys, topics_key
from lisa_common.model.policy import Policy
from lisa_common.model.sharding import Layout, by_shard, home
from lisa_common.protocol import consuming, groups, producing
from lisa_common.protocol.call import Call, Flow, command
from lisa_common.protocol.registry import store_policy
from lisa_common.protocol.scheduling import find_home, move
from lisa_common.validation import check_name
from lisa_manager.queries import group_names
from lisa_manager.shard_groups import drop_in_shards
from lisa_manager.topic_drop import drop_shard
from lisa_manager.topic_limits import apply_limits, revised, write_limits

__all__ = [
    "CONTENTS",
    "ReshardResult",
    "close_former",
    "closed_shards",
    "complete_reshard",
    "known_in_former",
    "reshard",
    "restore_layout",
]

_MOST_FORMER = 3
"""The most former layouts that may hold messages: for each, a send with a chosen id checks one more shard."""

_COUNT = re.compile(rb"\d{1,3}")

CONTENTS = tuple(name for name in TOPIC_KEYS if name not in {"ready", "closed", "door", "ticks"})
"""The keys that exist while a shard has anything to do, besides the entries of its stream."""


@dataclass(frozen=True, slots=True)
class ReshardResult:
    """The numbers of shards of a topic."""

    before: int
    shards: int
    """Shards for new messages now."""
    draining: int
    """Former shards that may still hold messages."""

    @property
    def changed(self) -> bool:
        """Whether the topic had another number of shards."""
        return self.before != self.shards


def reshard(prefix: str, topic: str, shards: int) -> Flow[ReshardResult]:
    """Spreads a topic's new messages over another number of shards.

    Raises UnknownTopic, and InvalidInput before anything is written. Running programs lose nothing and send nothing
    twice: a former shard refuses their sends, and programs that know the new shards check the former ones first.
    """
    before, after = yield from _change(prefix, topic, lambda before: _resharded(before, shards))
    return ReshardResult(len(before.shards), len(after.shards), sum(map(len, after.former.values())))


def restore_layout(layout: Layout) -> Flow[bool]:
    """Reshards a topic that was dropped and declared again, to the layout that it had when it was dropped.

    This works where reshards of today's layout led to that layout. It then serves programs that still use that layout,
    and what they have sent since the drop. Returns whether all shards of that layout are served.
    """
    _, after = yield from _change(layout.prefix, layout.topic, lambda before: _led_to(before.policy, layout.counts))
    return {*layout.served} <= {*after.served}


def complete_reshard(layout: Layout) -> Flow[bool]:
    """Reshards a topic whose current shards are closed, to the layout for which they were. Returns whether it did.

    A server has lost that reshard, or a program that was suspended has closed them after the topic was dropped and made
    again. To open them would be unsafe: some messages may be in later shards already. Raises InvalidInput where they
    name no layout to which reshards of the present one lead.
    """
    stored: list[bytes | None] = yield [command("GET", keys.of("closed")) for keys in layout.shards]
    later = max(map(_counts, filter(None, stored)), key=len, default=())
    before, after = yield from _change(layout.prefix, layout.topic, lambda before: _led_to(before.policy, later))
    if before == after and before.shards == layout.shards and {*stored} != {None}:
        raise InvalidInput(f"closed of {layout.topic}", later, f"a layout after {before.counts}")
    return before != after


def closed_shards(layout: Layout) -> Flow[list[ShardKeys]]:
    """Returns the current shards of a layout that are closed, though the layout may not be the present one."""
    are_closed: list[int] = yield [command("EXISTS", keys.of("closed")) for keys in layout.shards]
    return [keys for keys, is_closed in zip(layout.shards, are_closed, strict=True) if is_closed]


def _counts(closed: bytes) -> tuple[int, ...]:
    """The layout for which a shard was closed. Earlier releases do not say it."""
    return tuple(int(count) for count in closed.split(b",") if _COUNT.fullmatch(count))


def _led_to(policy: Policy, later: tuple[int, ...]) -> Policy:
    """The policy with a later layout; the policy itself if reshards of its own layout do not lead there."""
    counts = (*policy.former, policy.shards)
    if later[: len(counts)] != counts:
        return policy
    fields = policy.model_dump(exclude_unset=True)
    return Policy.of(fields | {"shards": later[-1], "former": later[:-1]})


def _change(prefix: str, topic: str, changed: Callable[[Layout], Policy]) -> Flow[tuple[Layout, Layout]]:
    joined: set[str] = set()
    begun: Layout | None = None
    while True:
        try:
            before, stored = yield from _read(prefix, topic)
        except UnknownTopic:
            if begun:
                revision = begun.policy.limits_revision
                yield [drop_shard(keys, force=False, scheduled=False, revision=revision) for keys in begun.ever]
            raise
        policy = yield from revised(before.policy, changed(before))
        after = Layout(prefix, topic, policy)
        if after.policy.former == before.policy.former:
            return before, before
        begun = after
        # Create the streams before the groups are read: a group that is created later looks for these streams.
        yield [consuming.open_stream(keys) for keys in after.ever if keys not in before.ever]
        # Every group has to be in the new shards before their first message.
        joined |= yield from _take_over_groups(before, after)
        if policy.is_limited:
            # The former shards give up a part of their shares before the new ones get any message.
            yield from write_limits(after)
        if (yield store_policy(prefix, topic, stored, after.policy)):
            break
    present, _ = yield from _read(prefix, topic)
    if present.policy.former[: len(policy.former)] != policy.former:
        # Closing the former shards would leave the topic without any that take messages.
        raise OutcomeUnknown(f"the server has lost the new layout of {topic}; reshard it again")
    yield [producing.close_shard(after, keys) for keys in before.shards]
    if policy.limits_revision:
        # Also if they were lifted meanwhile: the new shards may have got the former ones.
        yield from apply_limits(prefix, topic)
    yield from _reconcile_groups(before, after, joined)
    return before, after


def _take_over_groups(before: Layout, after: Layout) -> Flow[set[str]]:
    """Creates all groups in the new shards. Returns their names.

    A group that only the new shards have comes from an interrupted reshard, and was dropped since: it is dropped here.
    """
    new = _new_shards(before, after)
    in_new = yield from group_names(new)
    known = yield from group_names(before.served)
    for name in sorted(in_new - known):
        yield from drop_in_shards(new, name, force=False)
    for name in sorted(known):
        yield from groups.join_shards([new], name)
    return known


def _reconcile_groups(before: Layout, after: Layout, joined: set[str]) -> Flow[None]:
    """Repeats in the new shards the changes that programs made meanwhile to groups in the former shards only.

    An operator may have dropped some, and programs of an earlier release may have created others.
    """
    new = _new_shards(before, after)
    known = yield from group_names(before.served)
    for name in sorted(joined - known):
        yield from drop_in_shards(new, name, force=True)
    for name in sorted(known - joined):
        yield from groups.join_shards([new], name)


def _new_shards(before: Layout, after: Layout) -> list[ShardKeys]:
    return [keys for keys in after.served if keys not in before.served]


def _read(prefix: str, topic: str) -> Flow[tuple[Layout, bytes]]:
    # Not as readers do it: what they salvage of a damaged policy must not be stored.
    stored: bytes | None = yield command("HGET", topics_key(prefix), check_name("topic", topic))
    if stored is None:
        raise UnknownTopic(topic)
    return Layout(prefix, topic, Policy.load(stored)), stored


def _resharded(before: Layout, shards: int) -> Policy:
    policy = before.policy
    if policy.max_in_flight_per_key is not None:
        if shards != 1:
            raise InvalidInput("shards", shards, "1, as max_in_flight_per_key of the topic is set")
        return policy
    fields = policy.model_dump(exclude_unset=True)
    after = Policy.of(fields | {"shards": shards, "former": (*policy.former, policy.shards)})
    # What a cap hides must be possible, too: it holds again once the cap is dropped.
    Policy.of(after.own_fields)
    if shards == policy.shards:
        return policy
    if len(before.former) >= _MOST_FORMER:
        raise InvalidInput(
            "shards", shards, f"{policy.shards}, as now, while {_MOST_FORMER} former layouts hold messages"
        )
    return after


def known_in_former(layout: Layout, ids: Sequence[str]) -> Flow[set[str]]:
    """The ids that former shards know. Closes these shards for new messages, as producers do."""
    known = set[str]()
    for shards in layout.former.values():
        unknown = (id for id in ids if id not in known)
        for keys, part in by_shard(unknown, partial(home, shards)).items():
            are_known: list[bool] = yield producing.close_shard(layout, keys, part)
            known.update(id for id, is_known in zip(part, are_known, strict=True) if is_known)
    return known


def close_former(prefix: str, topic: str, *, may_move: bool = True) -> Flow[list[int]]:
    """Removes a topic's former layouts whose shards are empty. Returns the number of shards in each.

    Also closes these layouts' shards, in case a reshard was interrupted before it did. Raises UnknownTopic. With
    `may_move`, it first moves the topic's schedules to the current shards.
    """
    layout, stored = yield from _read(prefix, topic)
    yield [producing.close_shard(layout, keys) for shards in layout.former.values() for keys in shards]
    if not (yield from _have_moved(layout, may_move=may_move)):
        return []
    drained = []
    for number, shards in layout.former.items():
        contents: list[Call[int]] = [command("EXISTS", *map(keys.of, CONTENTS)) for keys in shards]
        entries: list[Call[int]] = [command("XLEN", keys.of("ready")) for keys in shards]
        if not any((yield [*contents, *entries])):
            drained.append(number)
    if not drained:
        return []
    # No manager sweeps them any more, and handlers do not shut them again.
    yield [command("HDEL", keys.of("door"), "shut") for number in drained for keys in layout.former[number]]
    fields = layout.policy.model_dump(exclude_unset=True) | {"drained": (*layout.policy.drained, *drained)}
    removed = yield store_policy(prefix, topic, stored, Policy.of(fields))
    if removed and layout.policy.is_limited:
        # The shares of the former shards are free.
        yield from apply_limits(prefix, topic)
    return [len(layout.former[number]) for number in drained] if removed else []


def _have_moved(layout: Layout, *, may_move: bool) -> Flow[bool]:
    """Whether the topic's schedules are in the current shards. Moves them there, or removes what a move has left."""
    new, *former = layout.schedule_homes
    home = yield from find_home(layout)
    if home.is_moving and home.keys == new:
        return False
    if home.clock is not None and home.keys == new:
        # In a later turn than the move, as others may still have used it.
        yield [command("UNLINK", keys.of(name)) for keys in former for name in ("schedules", "ticks")]
        return True
    exist: list[int] = yield [command("EXISTS", *keys.of_each(("schedules", "ticks"))) for keys in former]
    if any(exist) and may_move:
        yield from move(layout)
    return not any(exist)
