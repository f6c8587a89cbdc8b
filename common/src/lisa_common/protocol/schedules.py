"""Schedules at the server: the registry of definitions, and calls on the marks of ticks."""

import logging
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

from lisa_common.errors import InvalidInput
from lisa_common.logs import event
from lisa_common.model.keys import ShardKeys, schedules_key, text_of, wake_channel
from lisa_common.model.policy import Policy
from lisa_common.model.schedule import Definition, Mark, Schedule, tick_id
from lisa_common.model.ticks import Tick
from lisa_common.protocol.call import Call, Flow, command, script
from lisa_common.protocol.replies import byte_values, number, pairs, rows
from lisa_common.protocol.scripts import Arg

__all__ = [
    "ChangeLog",
    "Marked",
    "Ticked",
    "get_definition",
    "get_mark",
    "marks_in",
    "parse_definition",
    "read_definitions",
    "read_log",
    "send_ticks",
    "set_fence",
    "store_definition",
    "unmark",
    "withdraw",
]

logger = logging.getLogger(__name__)

_PAGE = 200
"""Most definitions in one reply: each may have 64 KiB of a body."""

_LOG = ""
"""The field with the log of changes."""

_MAX_DIGITS = 15


class ChangeLog(NamedTuple):
    """The latest changes of schedules."""

    changes: int
    """The number of changes so far."""
    latest: Sequence[str]
    """The names of the latest, newest first."""

    def since(self, changes: int) -> list[str] | None:
        """The schedules that have changed since there were so many changes; None where that is no longer known."""
        news = self.changes - changes
        return list(dict.fromkeys(self.latest[:news])) if 0 <= news <= len(self.latest) else None


def read_log(prefix: str) -> Call[ChangeLog]:
    """Reads the log of changes."""

    def decode(reply: Any) -> ChangeLog:
        count, *latest = text_of(reply or b"").split() or ["0"]
        return ChangeLog(int(count) if count.isdigit() and len(count) <= _MAX_DIGITS else 0, latest)

    return command("HGET", schedules_key(prefix), _LOG, decode=decode)


def parse_definition(name: str, stored: bytes | None) -> Definition | None:
    """A stored definition; None where there is none, or for a damaged one, which is logged once."""
    if stored is None:
        return None
    try:
        return Definition.load(name, stored)
    except InvalidInput as error:
        _log_once(name, str(error))
        return None


@lru_cache(maxsize=10_000)
def _log_once(name: str, error: str) -> None:
    text = "damaged schedule %r, which does not tick: %s"
    logger.error(text, name, error, extra=event("schedule_damaged", schedule=name, error=error))


def get_definition(prefix: str, name: str) -> Call[bytes | None]:
    """The stored definition of a schedule."""
    return command("HGET", schedules_key(prefix), name)


def read_definitions(prefix: str, names: Sequence[str] | None = None) -> Flow[dict[str, bytes]]:
    """The stored definitions of these schedules, or of all, by name; without those that do not exist."""
    key = schedules_key(prefix)
    if names is None:
        fields: list[bytes] = yield command("HKEYS", key)
        names = [text_of(name) for name in fields if name]
    stored: dict[str, bytes] = {}
    for at in range(0, len(names), _PAGE):
        page = names[at : at + _PAGE]
        values = yield command(
            "HMGET",
            key,
            *(name.encode("utf-8", "surrogateescape") for name in page),
            decode=partial(byte_values, count=len(page)),
        )
        stored.update((name, value) for name, value in zip(page, values, strict=True) if value is not None)
    return stored


def store_definition(prefix: str, before: bytes | None, after: Definition | None, name: str) -> Call[bool]:
    """Sets a definition, or with None removes it, if the registry still has `before`. Result: whether it had."""
    return script(
        "set_schedule",
        ShardKeys(prefix, "schedules"),
        decode=bool,
        name=name,
        before=before or b"",
        after=after.dump() if after else b"",
    )


class Marked(NamedTuple):
    """A mark, and when it was read."""

    now_ms: int
    mark: Mark | None


class Ticked(NamedTuple):
    """The result of sending ticks."""

    now_ms: int
    mark: Mark | None
    sent: int
    skipped: int


def get_mark(keys: ShardKeys, name: str) -> Call[Mark | None]:
    """The mark of a schedule in one shard."""
    return command("HGET", keys.of("ticks"), name, decode=Mark.load)


def send_ticks(
    keys: ShardKeys,
    definition: Definition,
    schedule: Schedule,
    *,
    mark: Mark,
    ticks: Sequence[Tick],
    policy: Policy,
    now_ms: Arg = "",
) -> Call[Ticked]:
    """Sends ticks after a mark. Sends nothing where the mark has moved on. Raises Resharded.

    Repeatable, as the mark refuses a repetition.
    """

    def decode(reply: Any) -> Ticked:
        now, text, sent, skipped = rows(reply, 4)
        return Ticked(number(now), Mark.load(text), number(sent), number(skipped))

    return script(
        "tick",
        keys,
        [_row(schedule, tick, policy) for tick in ticks],
        decode=decode,
        now_ms=now_ms,
        channel=wake_channel(keys.prefix),
        topic=keys.tag,
        name=definition.name,
        version=definition.version,
        before=mark.last_ms,
        exclusive=int(schedule.overlap == "skip"),
    )


def _row(schedule: Schedule, tick: Tick, policy: Policy) -> tuple[Arg, ...]:
    content = schedule.content(policy, tick.tick_ms, caught_up=tick.late) if tick.send else b""
    id = tick_id(schedule.name, tick.tick_ms)
    return tick.tick_ms, tick.due_ms, int(tick.late), tick.skipped, id, content


def set_fence(
    keys: ShardKeys, name: str, *, version: int, since_ms: int, base: bytes, read_ms: int, now_ms: Arg = ""
) -> Call[Marked]:
    """Makes a version the one whose ticks may be sent. Result without a mark: `read_ms` was too long ago.

    `base` is the mark of the schedule's shard before a reshard. Raises Resharded.
    """
    return script(
        "fence",
        keys,
        decode=_marked,
        now_ms=now_ms,
        topic=keys.tag,
        name=name,
        version=version,
        since=since_ms,
        base=base,
        read=read_ms,
    )


def _marked(reply: Any) -> Marked:
    now, text = rows(reply, 2)
    return Marked(number(now), Mark.load(text))


def withdraw(keys: ShardKeys, name: str, *, skip: bool = False) -> Call[tuple[Mark | None, bool]]:
    """Takes back the tick ahead; with `skip` it counts as left out. Result: the mark, and whether one was ahead."""

    def decode(reply: Any) -> tuple[Mark | None, bool]:
        text, done = rows(reply, 2)
        return Mark.load(text), bool(done)

    return script("withdraw", keys, decode=decode, name=name, skip=int(skip))


def unmark(keys: ShardKeys, name: str, mark: bytes) -> Call[bool]:
    """Removes a mark that has not changed. Result: whether it did."""
    return script("unmark", keys, decode=bool, name=name, mark=mark)


def marks_in(keys: ShardKeys) -> Call[Mapping[str, bytes]]:
    """All marks in a shard, by schedule."""

    def decode(reply: Any) -> Mapping[str, bytes]:
        return {text_of(name): text for name, text in pairs(reply)}

    return command("HGETALL", keys.of("ticks"), decode=decode)
