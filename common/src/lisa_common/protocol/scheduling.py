"""Changing schedules, and keeping them going, as flows: for operators, workers and managers alike.

A change is two writes: the definition in the registry, then the fence in the shard of the schedule's marks. Whoever
sees the definition makes the second write too, so that an author who dies between them leaves nothing half done.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from lisa_common.errors import Refused, Resharded
from lisa_common.model.keys import ShardKeys
from lisa_common.model.schedule import Definition, Mark, Schedule
from lisa_common.model.sharding import Layout, home
from lisa_common.model.ticks import MOST_AT_ONCE, Tick, next_due_ms, plan
from lisa_common.protocol import producing
from lisa_common.protocol.call import Flow, command
from lisa_common.protocol.consuming import server_time
from lisa_common.protocol.producing import Found, State
from lisa_common.protocol.registry import Topics
from lisa_common.protocol.schedules import (
    Marked,
    Ticked,
    get_definition,
    get_mark,
    parse_definition,
    send_ticks,
    set_fence,
    store_definition,
    unmark,
    withdraw,
)

__all__ = [
    "Change",
    "Settled",
    "advance",
    "change",
    "declare",
    "is_held_up",
    "left_out",
    "mark_shard",
    "retire",
    "settle",
]

_GRACE_MS: Final = 60_000
"""How long a mark stays where its schedule has left: longer than a manager may take from its reading of a definition to
its fence, which `lua/fence.lua` says."""

_TRIES: Final = 5
"""How often a flow begins anew because of changes by others; each of them takes a round trip."""

Changed = Callable[[Definition | None, int], Schedule | None]
"""The new schedule, from the definition so far and the server's time in ms. It may raise InvalidInput."""


class Change(NamedTuple):
    """The result of a change."""

    before: Definition | None
    after: Definition | None

    @property
    def changed(self) -> bool:
        """Whether anything was written."""
        return self.before is not self.after


class Settled(NamedTuple):
    """A definition that is in force, and the mark of its schedule. Without a mark: it was changed meanwhile."""

    definition: Definition
    marked: Marked | None


def mark_shard(layout: Layout, name: str) -> ShardKeys:
    """The shard that holds a schedule's mark and ticks."""
    return layout.home(name)


def declare(prefix: str, topics: Topics, schedule: Schedule) -> Flow[Change]:
    """Sets a whole schedule, but keeps it paused or not as it is. Nothing is written if it is the same.

    Managers put it in force, within a second.
    """

    def changed(before: Definition | None, now_ms: int) -> Schedule:
        known = before.schedule if before else None
        new = schedule.model_copy(update={"paused": known.paused}) if known else schedule
        return new.checked(now_ms)

    return (yield from change(prefix, topics, schedule.name, changed, catches_up=False))


def change(prefix: str, topics: Topics, name: str, changed: Changed, *, catches_up: bool = True) -> Flow[Change]:
    """Writes a new definition, the first of the two writes. Raises what `changed` raises before anything is written.

    With `catches_up`, it first sends what is due by the former definition: else that is lost if no manager has sent it.
    """
    chances = _TRIES if catches_up else 0
    while True:
        stored: bytes | None = yield get_definition(prefix, name)
        before = parse_definition(name, stored)
        new = changed(before, (yield server_time()))
        old = before.schedule if before else None
        if before is not None and new == old:
            return Change(before, before)
        if new is None and stored is None:
            return Change(None, None)
        topic = new.topic if new else old.topic if old else None
        # Workers have no rights on marks.
        now_ms, known = yield from _look(topics, topic if catches_up else None, name)
        if chances and before is not None and old is not None and _is_behind(before, old, known, now_ms):
            chances -= 1
            yield from _catch_up(prefix, topics, before)
            continue
        version = max(now_ms, *(1 + each.version for each in (before, known) if each), 0)
        after = _next_definition(before, new, name, version, now_ms)
        if (yield store_definition(prefix, stored, after, name)):
            return Change(before, after)


def _is_behind(definition: Definition, schedule: Schedule, mark: Mark | None, now_ms: int) -> bool:
    """Whether a tick is due that nobody has sent."""
    if schedule.paused:
        return False
    if mark is None or mark.version != definition.version:
        return True
    due_ms = next_due_ms(schedule, mark.last_ms)
    return due_ms is not None and due_ms <= now_ms


def _catch_up(prefix: str, topics: Topics, definition: Definition) -> Flow[None]:
    settled = yield from settle(prefix, topics, definition)
    if settled.marked is not None:
        try:
            yield from advance(topics, settled.definition, settled.marked)
        except Resharded:
            if settled.definition.schedule is not None:
                yield from topics.resolve_anew(settled.definition.schedule.topic)


def _look(topics: Topics, topic: str | None, name: str) -> Flow[tuple[int, Mark | None]]:
    """The time at the shard of a schedule's mark, and the mark."""
    if topic is None:
        return (yield server_time()), None
    layout = yield from topics.resolve(topic)
    mark, now_ms = yield [get_mark(mark_shard(layout, name), name), server_time()]
    return now_ms, mark


def _next_definition(
    before: Definition | None, new: Schedule | None, name: str, version: int, now_ms: int
) -> Definition | None:
    old = before.schedule if before else None
    left = dict(before.left) if before else {}
    if old is not None and (new is None or new.topic != old.topic):
        left[old.topic] = version
    if new is None:
        after = Definition(name, None, version, 0, left) if left else None
    else:
        left.pop(new.topic, None)
        keeps = before is not None and old is not None and new.has_rhythm_of(old)
        after = Definition(name, new, version, before.since_ms if before and keeps else now_ms, left)
    return replace(after, stored=after.dump()) if after else None


def settle(prefix: str, topics: Topics, definition: Definition) -> Flow[Settled]:
    """Puts a definition in force, the second of the two writes, where that was not done yet."""
    for topic, version in definition.left.items():
        # Versions are times: what was due before the schedule left is its last message there.
        if (yield from _fence(prefix, topics, topic, definition, version=version, since_ms=version)) is None:
            return Settled(definition, None)
    if definition.schedule is None:
        return Settled(definition, None)
    topic = definition.schedule.topic
    yield from _declared(topics, topic)
    version, since_ms = definition.version, definition.since_ms
    marked = yield from _fence(prefix, topics, topic, definition, version=version, since_ms=since_ms)
    if marked is None or marked.mark is None or marked.mark.version <= definition.version:
        return Settled(definition, marked)
    # The mark is newer than a definition that is the present one: the server's clock was set back between a deletion
    # and this version, or the registry was restored from a backup.
    newer = replace(definition, version=marked.mark.version + 1)
    newer = replace(newer, stored=newer.dump())
    yield store_definition(prefix, definition.stored, newer, definition.name)
    return Settled(newer, None)


def _declared(topics: Topics, topic: str) -> Flow[Layout]:
    layout = topics.known(topic, declared=True)
    if layout is None:
        yield from topics.resolve(topic)
        layout = yield from topics.declare(topic)
    return layout


def _fence(
    prefix: str, topics: Topics, topic: str, definition: Definition, *, version: int, since_ms: int
) -> Flow[Marked | None]:
    """Fences a definition in the shard of its marks. Result: None where the definition is no longer the present one."""
    layout = yield from topics.resolve(topic)
    for _ in range(_TRIES):
        try:
            return (yield from _fence_in(prefix, layout, definition, version, since_ms))
        except Resharded:
            layout = yield from topics.resolve_anew(topic)
    raise Refused(f"{topic} was resharded, and the registry does not say where new messages go")


def _fence_in(prefix: str, layout: Layout, definition: Definition, version: int, since_ms: int) -> Flow[Marked | None]:
    name, keys = definition.name, mark_shard(layout, definition.name)
    base, moved = b"", list[tuple[ShardKeys, bytes]]()
    for shards in layout.former.values():
        former = home(shards, name)
        text: bytes | None = yield command("HGET", former.of("ticks"), name)
        if text is not None:
            # Closed first: a manager with the former layout could send there what is sent anew here.
            _, (mark, _) = yield [producing.close_shard(former, []), withdraw(former, name)]
            moved.append((former, mark.text if mark else text))
            base = max(base, mark.text if mark else b"", key=_last_of)
    _, read_ms = yield [get_mark(keys, name), server_time()]
    if (yield get_definition(prefix, name)) != definition.stored:
        return None
    marked: Marked = yield set_fence(keys, name, version=version, since_ms=since_ms, base=base, read_ms=read_ms)
    if marked.mark is not None:
        for former, text in moved:
            yield unmark(former, name, text)
    return marked


def _last_of(text: bytes) -> int:
    mark = Mark.load(text)
    return mark.last_ms if mark else -1


def advance(topics: Topics, definition: Definition, marked: Marked) -> Flow[Ticked]:
    """Sends what is due of a schedule, and the tick ahead. Raises Resharded where its mark has to move first."""
    schedule, result = definition.schedule, Ticked(marked.now_ms, marked.mark, 0, 0)
    if schedule is None:
        return result
    layout = yield from topics.resolve(schedule.topic)
    while result.mark is not None and result.mark.version == definition.version:
        ticks = plan(schedule, result.mark.last_ms, result.now_ms)
        if not ticks or result.now_ms < result.mark.due_ms:
            break
        if (yield from is_held_up(layout, schedule, result.mark)):
            ticks = left_out(ticks)
        keys = mark_shard(layout, schedule.name)
        before = result.mark.last_ms
        ticked: Ticked = yield send_ticks(
            *(keys, definition, schedule), mark=result.mark, ticks=ticks, policy=layout.policy
        )
        result = Ticked(ticked.now_ms, ticked.mark, result.sent + ticked.sent, result.skipped + ticked.skipped)
        if len(ticks) < MOST_AT_ONCE or result.mark is None or result.mark.last_ms == before:
            break
    return result


def is_held_up(layout: Layout, schedule: Schedule, mark: Mark) -> Flow[bool]:
    """Whether a former shard holds a message that a schedule without overlap waits for.

    Scripts see their own shard only. Once done, such a message stays done, so it is enough to ask beforehand.
    """
    if schedule.overlap == "allow" or mark.id == "-":
        return False
    for shards in layout.former.values():
        found: Found | None = yield producing.find(home(shards, schedule.name), mark.id)
        if found is not None and found.state is not State.FINISHED:
            copies = {copy.state for copy in found.copies}
            return not copies or copies != {State.GARBAGE}
    return False


def left_out(ticks: Sequence[Tick]) -> list[Tick]:
    """The same ticks, to move the mark and send nothing."""
    return [replace(tick, send=False) for tick in ticks]


def retire(prefix: str, topics: Topics, definition: Definition) -> Flow[bool]:
    """Removes the marks where a schedule has left, once no manager can still know it there.

    Result: whether nothing is left to remove.
    """
    now = definition
    for topic, version in definition.left.items():
        layout = yield from topics.resolve(topic)
        for keys in layout.homes(definition.name):
            mark, now_ms = yield [get_mark(keys, definition.name), server_time()]
            if now_ms - version < _GRACE_MS:
                return False
            if mark is not None and mark.version <= version:
                yield unmark(keys, definition.name, mark.text)
        now = now.without(topic)
    if now != definition:
        after = now if now.schedule or now.left else None
        yield store_definition(prefix, definition.stored, after, definition.name)
    return True
