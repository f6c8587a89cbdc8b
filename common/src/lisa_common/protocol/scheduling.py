"""Changing schedules, and moving them after a reshard, as flows: for operators, workers and managers alike.

All schedules of a topic are in its home: the first shard of one of its layouts. A reshard leaves them in the former
one, until they move.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final, NamedTuple

from lisa_common.errors import Refused, Resharded
from lisa_common.model.keys import ShardKeys, wake_channel
from lisa_common.model.schedule import Definition, Mark, Schedule
from lisa_common.model.sharding import Layout
from lisa_common.model.ticks import MOST_AT_ONCE, next_due_ms, plan
from lisa_common.protocol import producing
from lisa_common.protocol.call import Call, Flow, command
from lisa_common.protocol.consuming import server_time
from lisa_common.protocol.producing import Found, State
from lisa_common.protocol.registry import Topics
from lisa_common.protocol.schedules import (
    Ticked,
    Written,
    adopt,
    get_clock,
    get_definition,
    get_mark,
    leave,
    names_in,
    parse_definition,
    send_ticks,
    write_schedule,
)

__all__ = [
    "Change",
    "Home",
    "advance",
    "announce",
    "change",
    "declare",
    "find_home",
    "move",
    "send_page",
]

_TRIES: Final = 20
"""How often a flow begins again because of changes by others; each of them takes a round trip."""

_PAGE: Final = 100
"""Most schedules that move in one call."""

Changed = Callable[[Definition | None, int], Schedule | None]
"""The new schedule, from the definition so far and the server's time in ms. It may raise InvalidInput."""


class Change(NamedTuple):
    """The result of a change."""

    before: Definition | None
    after: Definition | None
    existed: bool
    """Whether anything was stored before, even if it was damaged."""

    @property
    def changed(self) -> bool:
        """Whether anything was written."""
        return (self.before and self.before.version) != (self.after and self.after.version)


class Home(NamedTuple):
    """Where a topic's schedules are."""

    layout: Layout
    keys: ShardKeys
    clock: bytes | None

    @property
    def is_moving(self) -> bool:
        """Whether somebody has begun to move them to later shards."""
        return self.clock is not None and self.clock.startswith(b"left")

    @property
    def is_first(self) -> bool:
        """Whether no former shards may have them."""
        return self.keys == self.layout.schedule_homes[-1]


def find_home(layout: Layout) -> Flow[Home]:
    """Asks the shards that may have a topic's schedules."""
    clocks: list[bytes | None] = yield [get_clock(keys) for keys in layout.schedule_homes]
    homes = [Home(layout, *each) for each in zip(layout.schedule_homes, clocks, strict=True)]
    return next((home for home in homes if home.clock is not None), homes[-1])


def move(layout: Layout) -> Flow[bool]:
    """Brings the schedules of a topic to its current shards, in steps that anybody may repeat. Returns whether it did.

    It ends with its connection, as a server that comes back may have lost what it has answered so far.
    """
    new, *former = layout.schedule_homes
    for keys in former:
        is_first = keys == former[-1]
        left = yield leave(layout, keys, first=is_first)
        if left is None:
            continue
        names: list[str] = yield names_in(keys)
        count = 0
        for at in range(0, len(names), _PAGE):
            left = yield leave(layout, keys, names[at : at + _PAGE], first=is_first)
            if left is None or not (yield adopt(new, left[1])):
                return False
            count += len(left[1])
        version = max(left[0], (yield server_time()))
        return bool((yield adopt(new, version=version, count=count)))
    return False


def declare(topics: Topics, schedule: Schedule) -> Flow[Change]:
    """Sets a whole schedule, but keeps it paused or not as it is. Nothing is written if it is the same.

    It sends no ticks, as workers may not. A tick that is due, and that no manager has sent yet, is lost.
    """

    def changed(before: Definition | None, now_ms: int) -> Schedule:
        new = schedule.model_copy(update={"paused": before.schedule.paused}) if before else schedule
        return new.checked(now_ms)

    return (yield from change(topics, schedule.topic, schedule.name, changed, sends=False))


def announce(topics: Topics, topic: str) -> Flow[bool]:
    """Tells managers of a topic with schedules, which workers may not declare. Returns whether it is declared."""
    layout = yield from topics.resolve(topic)
    if not topics.is_declared(topic):
        yield _wake(layout)
        return False
    return True


def _wake(layout: Layout) -> Call[object]:
    keys = layout.shards[0]
    return command("PUBLISH", wake_channel(keys.prefix), f"{keys.tag} 0 schedule", takes_errors=True)


def change(topics: Topics, topic: str, name: str, changed: Changed, *, sends: bool = True) -> Flow[Change]:
    """Changes a schedule in one step. Raises what `changed` raises before anything is written.

    With `sends`, it declares the topic, first sends what is due by the former definition, and then the tick ahead.
    """
    layout = yield from topics.resolve_again(topic)
    made: list[Change] = []
    for _ in range(_TRIES):
        home = yield from find_home(layout)
        try:
            if not (is_moving := home.is_moving) and (
                yield from _is_made(topics, home, name, changed, made, sends=sends)
            ):
                # An earlier attempt may have done it, and its reply was lost.
                return made[0]._replace(after=made[-1].after)
        except Resharded:
            is_moving = True
        layout = yield from topics.resolve_again(topic)
        if is_moving and not sends:
            yield _wake(layout)
            raise Refused(f"the schedules of {topic} are moving to other shards; try again")
        if is_moving:
            # Somebody has begun that, and may have died since.
            yield from move(layout)
    raise Refused(f"schedule {name} of {topic} is being changed by others, or is moving to other shards; try again")


def _is_made(topics: Topics, home: Home, name: str, changed: Changed, made: list[Change], *, sends: bool) -> Flow[bool]:
    """Tries a change once, and adds it. Returns whether it was made, or needless; else the caller tries it again."""
    stored, mark, now_ms = yield [get_definition(home.keys, name), get_mark(home.keys, name), server_time()]
    before = parse_definition(home.keys, name, stored)
    new = changed(before, now_ms)
    made.append(Change(before, before, stored is not None))
    if (before.schedule if before else stored) == new:
        return True
    if sends and new is not None:
        declared = yield from topics.declare(new.topic)
        if declared.schedule_homes != home.layout.schedule_homes:
            # Another program declared it meanwhile, with several shards.
            return False
    following_ms = None
    if sends and before is not None and mark is not None:
        mark, following_ms = yield from _send_due(home, before, mark, now_ms)
        if mark is not None and mark.version != before.version:
            return False
    written: Written = yield write_schedule(
        *(home.keys, name, stored),
        before=before,
        after=new,
        first=home.is_first,
        mark=mark if sends else None,
        following_ms=following_ms,
    )
    if sends and written.after is not None and written.mark is not None:
        yield from advance(home, written.after, written.mark, written.now_ms)
    made[-1] = Change(before, written.after, stored is not None)
    return written.done


def _send_due(home: Home, before: Definition, mark: Mark, now_ms: int) -> Flow[tuple[Mark | None, int | None]]:
    """Sends what is due. Returns the mark, and when the tick after it is due; no mark where it cannot be sent."""
    try:
        ticked = yield from advance(home, before, mark, now_ms)
    except Refused:
        # A full server takes no tick either, and what fills it may be this schedule.
        return None, None
    if ticked.mark is None or before.schedule.paused:
        return ticked.mark, None
    following_ms = next_due_ms(before.schedule, ticked.mark.last_ms)
    # A full topic takes no tick.
    is_full = following_ms is not None and following_ms <= ticked.now_ms and ticked.mark.version == before.version
    return (None, None) if is_full else (ticked.mark, following_ms)


def advance(home: Home, definition: Definition, mark: Mark, now_ms: int) -> Flow[Ticked]:
    """Sends all that is due of a schedule, and the tick ahead."""
    while True:
        ticked: Ticked = yield from send_page(home, definition, mark, now_ms)
        is_last = ticked.sent + ticked.skipped < MOST_AT_ONCE
        if is_last or ticked.mark is None or ticked.mark.version != definition.version:
            return ticked
        mark, now_ms = ticked.mark, ticked.now_ms


def send_page(home: Home, definition: Definition, mark: Mark, now_ms: int) -> Flow[Ticked]:
    """Sends what is due of a schedule, at most `MOST_AT_ONCE` ticks, or the tick ahead."""
    ticks = plan(definition.schedule, mark.last_ms, now_ms)
    if not ticks or now_ms < mark.due_ms:
        return Ticked(now_ms, mark, 0, 0, is_told=False)
    if (yield from _is_held_up(home.layout, definition.schedule, mark)):
        # They move the mark, and send nothing.
        ticks = [replace(tick, send=False) for tick in ticks]
    ticked: Ticked = yield send_ticks(home.keys, definition, mark=mark, ticks=ticks, policy=home.layout.policy)
    return ticked


def _is_held_up(layout: Layout, schedule: Schedule, mark: Mark) -> Flow[bool]:
    """Whether a former shard holds a message that a schedule without overlap waits for.

    Scripts see their own shard only. Once done, such a message stays done, so it is enough to ask beforehand.
    """
    if schedule.overlap == "allow" or mark.id == "-":
        return False
    for keys in layout.schedule_homes[1:]:
        found: Found | None = yield producing.find(keys, mark.id)
        if found is not None and found.state is not State.FINISHED:
            copies = {copy.state for copy in found.copies}
            return not copies or copies != {State.GARBAGE}
    return False
