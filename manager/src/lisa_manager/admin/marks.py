"""Checks the marks of schedules: those that no schedule owns, and those that cannot be read."""

from collections.abc import Mapping

from lisa_common.errors import OF_THE_SERVER, LisaError
from lisa_common.model.keys import NO_GROUP, ShardKeys
from lisa_common.model.schedule import Definition, Mark
from lisa_common.protocol.call import Flow
from lisa_common.protocol.schedules import marks_in, parse_definition, read_definitions, unmark
from lisa_manager.admin.problem import Kind, Problem, Step

__all__ = ["check_marks"]

_GONE: tuple[Step, ...] = (("unmark", "ticks", "", ""),)
"""Marks a problem as repairable, though not by steps on a message."""


def check_marks(prefix: str, keys: ShardKeys, *, mend: bool) -> Flow[list[tuple[Problem, bool]]]:
    """The problems of the marks in one shard, and whether each was repaired.

    A deletion leaves marks for a while, and a reshard moves them: neither is a problem. A mark is repaired by its
    removal: a schedule that exists makes it anew.
    """
    try:
        marks: Mapping[str, bytes] = yield marks_in(keys)
    except OF_THE_SERVER:
        raise
    except LisaError:
        # The key is of a wrong type, which is another finding.
        return []
    if not marks:
        return []
    # In this order, as a schedule is defined before it has a mark.
    stored = yield from read_definitions(prefix, list(marks))
    found: list[tuple[Problem, bool]] = []
    for name, text in marks.items():
        definition = parse_definition(name, stored.get(name))
        if detail := _wrong_with(text, definition, keys.topic):
            mended = mend and bool((yield unmark(keys, name, text)))
            found.append((Problem(Kind.DANGLING, name, NO_GROUP, detail, _GONE), mended))
    return found


def _wrong_with(text: bytes, definition: Definition | None, topic: str) -> str:
    if Mark.load(text) is None:
        return "a mark of a schedule that cannot be read"
    if definition is None:
        return "a mark of a schedule that does not exist"
    is_here = definition.schedule is not None and definition.schedule.topic == topic
    return "" if is_here or topic in definition.left else "a mark of a schedule of another topic"
