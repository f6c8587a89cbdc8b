"""Checks the schedules in a shard: definitions and marks that do not belong together, and those that cannot be read."""

from collections.abc import Mapping

from lisa_common.errors import OF_THE_SERVER, LisaError
from lisa_common.model.keys import NO_GROUP, ShardKeys
from lisa_common.model.schedule import Mark
from lisa_common.protocol.call import Flow
from lisa_common.protocol.schedules import (
    HomeClock,
    marks_in,
    names_in,
    parse_definition,
    read_definitions,
    write_schedule,
)
from lisa_manager.admin.problem import Kind, Problem, Step

__all__ = ["check_marks"]

_GONE: tuple[Step, ...] = (("mark", "ticks", "", ""),)
"""Marks a problem as repairable, though not by steps on a message."""


def check_marks(keys: ShardKeys, *, mend: bool) -> Flow[list[tuple[Problem, bool]]]:
    """The problems of the schedules in one shard, and whether each was repaired.

    A repair gives a schedule a new mark, and removes a mark without a schedule. While schedules move, nothing is wrong.
    """
    names: list[str]
    marks: Mapping[str, bytes]
    try:
        # In this order, as a schedule that is made in between has both.
        names = yield names_in(keys)
        clock: HomeClock
        clock, marks = yield marks_in(keys)
    except OF_THE_SERVER:
        raise
    except LisaError:
        # A key is of a wrong type, which is another finding.
        return []
    if clock.has_left or (names and clock.text is None):
        return []
    stored = yield from read_definitions(keys, sorted({*names, *marks}))
    found: list[tuple[Problem, bool]] = []
    for name in sorted({*names, *marks}):
        if detail := _wrong_with(keys, name, stored.get(name), marks.get(name)):
            mended = mend and bool((yield from _mend(keys, name, stored.get(name))))
            found.append((Problem(Kind.DANGLING, name, NO_GROUP, detail, _GONE), mended))
    return found


def _wrong_with(keys: ShardKeys, name: str, stored: bytes | None, text: bytes | None) -> str:
    mark = Mark.load(text)
    if text is not None and mark is None:
        return "a mark of a schedule that cannot be read"
    if stored is None:
        return "a mark of a schedule that does not exist" if mark else ""
    definition = parse_definition(keys, name, stored)
    if definition is None:
        return ""
    if mark is None:
        return "a schedule without a mark"
    # A later version was written in between.
    return "a mark of another version of its schedule" if mark.version < definition.version else ""


def _mend(keys: ShardKeys, name: str, stored: bytes | None) -> Flow[bool]:
    definition = parse_definition(keys, name, stored)
    after = definition.schedule if definition else None
    try:
        written = yield write_schedule(keys, name, stored, before=definition, after=after, first=True)
    except LisaError:
        return False
    return bool(written.done)
