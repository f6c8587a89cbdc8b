"""Schedules at the server: calls on the definitions and marks of one shard."""

import logging
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

from lisa_common.errors import InvalidInput
from lisa_common.logs import event
from lisa_common.model.keys import ShardKeys, bytes_of, text_of
from lisa_common.model.policy import Policy
from lisa_common.model.schedule import Definition, Mark, Schedule, tick_id
from lisa_common.model.sharding import Layout
from lisa_common.model.ticks import Tick
from lisa_common.protocol.call import Call, Flow, command, script
from lisa_common.protocol.replies import byte_values, number, pairs, rows
from lisa_common.protocol.scripts import Arg

__all__ = [
    "Ticked",
    "Written",
    "adopt",
    "get_clock",
    "get_definition",
    "get_mark",
    "leave",
    "marks_in",
    "names_in",
    "parse_definition",
    "read_definitions",
    "send_ticks",
    "write_schedule",
]

logger = logging.getLogger(__name__)

_PAGE = 200
"""Most definitions in one reply: each may have 64 KiB of a body."""

_CLOCK = ""
"""The field of `ticks` with the clock."""

_MOVED = "/"
"""What the field of a mark begins with once it has moved. Names contain no slash."""


def get_clock(keys: ShardKeys) -> Call[bytes | None]:
    """A text that changes with each schedule in a shard; None where there never were any."""
    return command("HGET", keys.of("ticks"), _CLOCK)


def parse_definition(keys: ShardKeys, name: str, stored: bytes | None) -> Definition | None:
    """A stored definition; None where there is none, or for a damaged one, which is logged once."""
    if stored is None:
        return None
    try:
        return Definition.load(keys.topic, name, stored)
    except InvalidInput as error:
        _log_once(keys.topic, name, str(error))
        return None


@lru_cache(maxsize=10_000)
def _log_once(topic: str, name: str, error: str) -> None:
    text = "damaged schedule %r of topic %s, which does not tick: %s"
    logger.error(text, name, topic, error, extra=event("schedule_damaged", topic=topic, schedule=name, error=error))


def get_definition(keys: ShardKeys, name: str) -> Call[bytes | None]:
    """The stored definition of a schedule."""
    return command("HGET", keys.of("schedules"), name)


def get_mark(keys: ShardKeys, name: str) -> Call[Mark | None]:
    """The mark of a schedule."""
    return command("HGET", keys.of("ticks"), name, decode=Mark.load)


def names_in(keys: ShardKeys) -> Call[list[str]]:
    """The names of all schedules in a shard."""
    return command("HKEYS", keys.of("schedules"), decode=lambda reply: sorted(map(text_of, reply)))


def read_definitions(keys: ShardKeys, names: Sequence[str]) -> Flow[dict[str, bytes]]:
    """The stored definitions of these schedules, by name; without those that do not exist."""
    stored: dict[str, bytes] = {}
    for at in range(0, len(names), _PAGE):
        page = names[at : at + _PAGE]
        read = partial(byte_values, count=len(page))
        values = yield command("HMGET", keys.of("schedules"), *map(bytes_of, page), decode=read)
        stored.update((name, value) for name, value in zip(page, values, strict=True) if value is not None)
    return stored


def marks_in(keys: ShardKeys) -> Call[tuple[bytes | None, Mapping[str, bytes]]]:
    """The clock of a shard, and its marks by schedule, without those that have moved."""

    def decode(reply: Any) -> tuple[bytes | None, Mapping[str, bytes]]:
        marks = {text_of(name): text for name, text in pairs(reply)}
        clock = marks.pop(_CLOCK, None)
        return clock, {name: text for name, text in marks.items() if not name.startswith(_MOVED)}

    return command("HGETALL", keys.of("ticks"), decode=decode)


class Written(NamedTuple):
    """The result of a change."""

    now_ms: int
    done: bool
    """False where the schedule was changed by others, or a tick of its former definition is due."""
    after: Definition | None = None
    mark: Mark | None = None


def write_schedule(
    keys: ShardKeys,
    name: str,
    stored: bytes | None,
    *,
    before: Definition | None,
    after: Schedule | None,
    first: bool,
    mark: Mark | None = None,
    following_ms: int | None = None,
    skip: bool = False,
    now_ms: Arg = "",
) -> Call[Written]:
    """Sets a definition, or with None deletes it, where it still is as stored. Raises Resharded.

    `before` is that definition, if it can be read. With `mark`, nothing is done where the mark has moved on, or from
    `following_ms` on, when the tick after it is due. `skip` also leaves out the tick ahead. A repetition finds another
    definition, and does nothing.
    """
    rhythm, since_ms = True, None
    if before is not None and after is not None:
        rhythm = not after.has_rhythm_of(before.schedule)
        if not rhythm and after.paused == before.schedule.paused:
            since_ms = before.since_ms
    return script(
        *("set_schedule", keys),
        decode=partial(_written, after=after, since_ms=since_ms),
        now_ms=now_ms,
        name=name,
        before=stored or b"",
        last="" if mark is None else mark.last_ms,
        following="" if mark is None or following_ms is None else following_ms,
        since="" if since_ms is None else since_ms,
        rhythm=int(rhythm),
        skip=int(skip),
        first=int(first),
        after=b"" if after is None else after.stored_form(),
    )


def _written(reply: Any, *, after: Schedule | None, since_ms: int | None) -> Written:
    now_ms, done = map(number, reply[:2])
    if not done or after is None:
        return Written(now_ms, bool(done))
    version, text = reply[2:]
    definition = Definition(after, number(version), now_ms if since_ms is None else since_ms)
    return Written(now_ms, bool(done), definition, Mark.load(text))


Moved = tuple[str, bytes, bytes]
"""A schedule that moves: its name, its definition and its mark."""


def leave(
    layout: Layout, keys: ShardKeys, names: Sequence[str] = (), *, first: bool, now_ms: Arg = ""
) -> Call[tuple[int, list[Moved]] | None]:
    """Closes a former shard to schedules, and takes back what these ones sent ahead. None where there never were any.

    Not repeated over a broken connection: a server that comes back may have lost what it has answered before.
    """

    def decode(reply: Any) -> tuple[int, list[Moved]] | None:
        version, *values = reply
        found = zip(names, values[::2], values[1::2], strict=True) if version else ()
        return (int(version), [each for each in found if each[1]]) if version else None

    return script(
        *("leave", keys, [(name,) for name in names]),
        decode=decode,
        repeatable=False,
        now_ms=now_ms,
        first=int(first),
        layout=layout.counts_text,
    )


def adopt(keys: ShardKeys, moved: Sequence[Moved] = (), *, version: int | None = None, count: int = 0) -> Call[bool]:
    """Takes in schedules; with a version, opens the shard to them if it holds `count`. Returns whether it did."""
    return script(
        *("adopt", keys, moved),
        decode=bool,
        repeatable=False,
        version="" if version is None else version,
        count=count,
    )


class Ticked(NamedTuple):
    """The result of sending ticks."""

    now_ms: int
    mark: Mark | None
    sent: int
    skipped: int
    is_told: bool = True
    """Whether the time is the server's. If nothing is due, the server is not asked, and the time is the caller's."""


def send_ticks(
    keys: ShardKeys,
    definition: Definition,
    *,
    mark: Mark,
    ticks: Sequence[Tick],
    policy: Policy,
    now_ms: Arg = "",
) -> Call[Ticked]:
    """Sends ticks after a mark. Sends nothing where the mark has moved on.

    Repeatable, as the mark refuses a repetition.
    """

    def decode(reply: Any) -> Ticked:
        now, text, sent, skipped = rows(reply, 4)
        return Ticked(number(now), Mark.load(text), number(sent), number(skipped))

    schedule = definition.schedule
    return script(
        "tick",
        keys,
        [_row(schedule, tick, policy) for tick in ticks],
        decode=decode,
        now_ms=now_ms,
        name=schedule.name,
        version=definition.version,
        before=mark.last_ms,
        exclusive=int(schedule.overlap == "skip"),
    )


def _row(schedule: Schedule, tick: Tick, policy: Policy) -> tuple[Arg, ...]:
    content = schedule.content(policy, tick.tick_ms, caught_up=tick.late) if tick.send else b""
    id = tick_id(schedule.name, tick.tick_ms)
    return tick.tick_ms, tick.due_ms, int(tick.late), tick.skipped, id, content
