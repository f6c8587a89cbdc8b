"""Changes of schedules, by operators."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from lisa_common.errors import InvalidInput, LisaError, Refused, Resharded, UnknownSchedule
from lisa_common.model.schedule import Definition, Mark, Schedule
from lisa_common.model.schedule_input import stored_fields
from lisa_common.model.ticks import Tick
from lisa_common.protocol.call import Flow
from lisa_common.protocol.consuming import server_time
from lisa_common.protocol.registry import Topics
from lisa_common.protocol.schedules import (
    Ticked,
    get_definition,
    parse_definition,
    read_definitions,
    send_ticks,
    withdraw,
)
from lisa_common.protocol.scheduling import Change, Settled, advance, change, mark_shard, settle
from lisa_common.protocol.side_by_side import run_each
from lisa_common.validation import check_name
from lisa_manager.admin.schedules import existing_schedule
from lisa_manager.admin.topics import DEFAULT

__all__ = ["ImportedSchedules", "delete_schedule", "import_schedules", "set_paused", "set_schedule", "skip_tick"]

T = TypeVar("T")

_TRIES: Final = 5
"""How often a flow begins anew because others change the same schedule."""


@dataclass(frozen=True, slots=True)
class ImportedSchedules:
    """The result of an import: names of schedules."""

    created: tuple[str, ...]
    changed: tuple[str, ...]
    unchanged: tuple[str, ...]
    deleted: tuple[str, ...]


def set_schedule(
    prefix: str, topics: Topics, name: str, changes: Mapping[str, Any], *, whole: bool = False
) -> Flow[Change]:
    """Sets fields of a schedule, or with `whole` all of them; makes it if it does not exist."""
    check_name("schedule", name)
    fields = stored_fields(changes, DEFAULT)

    def changed(before: Definition | None, now_ms: int) -> Schedule:
        known = before.schedule if before else None
        old = known.model_dump(exclude_unset=True, exclude={"name"}) if known else {}
        if whole:
            old = {"paused": known.paused} if known else {}
        old = _without_other_rhythm(old, fields)
        new = {key: value for key, value in (old | fields).items() if value is not DEFAULT}
        if new.get("topic") is None:
            raise InvalidInput("topic", None, "given for a new schedule")
        return Schedule.of(new | {"name": name}).checked(now_ms)

    return (yield from _apply(prefix, topics, (yield from change(prefix, topics, name, changed))))


def _without_other_rhythm(old: dict[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """The present fields without the rhythm that a new one replaces."""
    gone = {"cron", "tz"} if fields.get("every_ms") is not None else set()
    gone |= {"every_ms"} if fields.get("cron") is not None else set()
    return {name: value for name, value in old.items() if name not in gone}


def set_paused(prefix: str, topics: Topics, name: str, *, paused: bool) -> Flow[Change]:
    """Pauses or resumes a schedule. Raises UnknownSchedule."""
    check_name("schedule", name)

    def changed(before: Definition | None, _: int) -> Schedule:
        return existing_schedule(before, name).model_copy(update={"paused": paused})

    return (yield from _apply(prefix, topics, (yield from change(prefix, topics, name, changed))))


def delete_schedule(prefix: str, topics: Topics, name: str) -> Flow[None]:
    """Deletes a schedule, and takes back its tick ahead. Raises UnknownSchedule."""
    check_name("schedule", name)
    stored: bytes | None = yield get_definition(prefix, name)
    definition = parse_definition(name, stored)
    if stored is None or (definition is not None and definition.schedule is None):
        raise UnknownSchedule(name)
    yield from _apply(prefix, topics, (yield from change(prefix, topics, name, lambda _, __: None)))


def _apply(prefix: str, topics: Topics, made: Change) -> Flow[Change]:
    """Puts a change in force, and sends the first tick ahead. A definition that did not change may not be in force."""
    if made.after is not None:
        yield from _in_force(prefix, topics, made.after)
    return made


def _in_force(prefix: str, topics: Topics, definition: Definition) -> Flow[Settled]:
    """Puts a definition in force, or a later one that replaced it."""
    for _ in range(_TRIES):
        settled = yield from settle(prefix, topics, definition)
        if settled.marked is not None:
            try:
                yield from advance(topics, settled.definition, settled.marked)
            except Resharded:
                yield from topics.resolve_anew(existing_schedule(definition, definition.name).topic)
                continue
            return settled
        if definition.schedule is None:
            return settled
        later = parse_definition(definition.name, (yield get_definition(prefix, definition.name)))
        if later is None:
            return settled
        definition = later
    raise Refused(f"schedule {definition.name} is being changed by others; try again")


def skip_tick(prefix: str, topics: Topics, name: str) -> Flow[int | None]:
    """Leaves out the next tick. Result: that tick, in ms since 1970; None for a schedule that has no more."""
    check_name("schedule", name)
    for _ in range(_TRIES):
        definition = parse_definition(name, (yield get_definition(prefix, name)))
        schedule = existing_schedule(definition, name)
        if definition is None or schedule.paused:
            raise InvalidInput("schedule", name, "one that is not paused")
        settled = yield from _in_force(prefix, topics, definition)
        if settled.marked is None or settled.definition != definition:
            continue
        layout = yield from topics.resolve(schedule.topic)
        keys = mark_shard(layout, name)
        withdrawn: tuple[tuple[Mark | None, bool], int] = yield [withdraw(keys, name, skip=True), server_time()]
        (mark, done), now_ms = withdrawn
        if mark is None or mark.version != definition.version:
            continue
        if done or mark.due_ms > now_ms:
            return mark.last_ms
        tick = next(schedule.ticks_after(mark.last_ms), None)
        if tick is None:
            return None
        left_out = Tick(tick, schedule.due_ms(tick), send=False)
        policy = layout.policy
        ticked: Ticked = yield send_ticks(keys, definition, schedule, mark=mark, ticks=[left_out], policy=policy)
        if ticked.mark is not None and ticked.mark.last_ms == tick:
            return tick
    raise Refused(f"schedule {name} is being changed by others; try again")


def import_schedules(
    prefix: str, topics: Topics, schedules: Mapping[str, Mapping[str, Any]], *, prune: bool
) -> Flow[ImportedSchedules]:
    """Makes schedules as these are; with `prune`, deletes all others. Checks all before it writes anything."""
    now_ms: int = yield server_time()
    for name, fields in schedules.items():
        try:
            Schedule.of(stored_fields(fields) | {"name": name}).checked(now_ms)
        except InvalidInput as error:
            raise InvalidInput(f"{error.field} of schedule {name}", error.value, error.expected) from None
    stored = yield from read_definitions(prefix)
    existing = {name for name, text in stored.items() if _is_alive(name, text)}
    settings = [set_schedule(prefix, topics, name, fields, whole=True) for name, fields in schedules.items()]
    changes = _all_done((yield from run_each(settings)))
    created, changed, unchanged = list[str](), list[str](), list[str]()
    for name, made in zip(schedules, changes, strict=True):
        (created if name not in existing else changed if made.changed else unchanged).append(name)
    deleted = sorted(existing - schedules.keys()) if prune else []
    _all_done((yield from run_each([delete_schedule(prefix, topics, name) for name in deleted])))
    return ImportedSchedules(tuple(created), tuple(changed), tuple(unchanged), tuple(deleted))


def _all_done(results: Sequence[T | LisaError]) -> list[T]:
    """The results; raises the first error among them."""
    done: list[T] = []
    for result in results:
        if isinstance(result, LisaError):
            raise result
        done.append(result)
    return done


def _is_alive(name: str, text: bytes) -> bool:
    definition = parse_definition(name, text)
    return definition is None or definition.schedule is not None
