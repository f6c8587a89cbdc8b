"""Changes of schedules, by operators."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from lisa_common.errors import UNDONE, InvalidInput, LisaError, OutcomeUnknown, Refused, Resharded, UnknownSchedule
from lisa_common.model.schedule import Definition, Mark, Schedule
from lisa_common.model.schedule_input import stored_fields
from lisa_common.model.ticks import Tick
from lisa_common.protocol.call import Flow, told_in_part
from lisa_common.protocol.consuming import server_time
from lisa_common.protocol.registry import Topics
from lisa_common.protocol.schedules import (
    Written,
    get_definition,
    get_mark,
    parse_definition,
    send_ticks,
    write_schedule,
)
from lisa_common.protocol.scheduling import Change, Home, advance, change, find_home
from lisa_common.protocol.side_by_side import run_each
from lisa_common.validation import check_list, check_mapping, check_name
from lisa_manager.admin.schedules.states import existing_schedule, list_schedules
from lisa_manager.admin.topics.policies import DEFAULT
from lisa_manager.queries import require_topic

__all__ = ["ImportedSchedules", "delete_schedule", "import_schedules", "set_paused", "set_schedule", "skip_tick"]

_TRIES: Final = 5
"""How often a flow begins again because others change the same schedule."""

_SHOWN: Final = 20
"""Most schedules that an error names."""

_ALL: Final = "*"
"""Stands for all topics."""


@dataclass(frozen=True, slots=True)
class ImportedSchedules:
    """The result of an import: names of schedules, as TOPIC/NAME."""

    created: tuple[str, ...]
    changed: tuple[str, ...]
    unchanged: tuple[str, ...]
    deleted: tuple[str, ...]


def set_schedule(topics: Topics, topic: str, name: str, changes: Mapping[str, Any]) -> Flow[bool]:
    """Sets fields of a schedule; makes it if it does not exist. Returns whether anything changed."""
    check_name("topic", topic)
    check_name("schedule", name)
    fields = stored_fields(changes, DEFAULT)

    def changed(before: Definition | None, now_ms: int) -> Schedule:
        old = before.schedule.model_dump(exclude_unset=True, exclude={"topic", "name"}) if before else {}
        old = _without_other_rhythm(old, fields)
        new = {key: value for key, value in (old | fields).items() if value is not DEFAULT}
        schedule = Schedule.of(new | {"topic": topic, "name": name}).checked(now_ms)
        schedule.check_future(now_ms, before.schedule if before else None)
        return schedule

    return (yield from change(topics, topic, name, changed)).changed


def _without_other_rhythm(old: dict[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """The present fields without the rhythm that a new one replaces."""
    gone = {"cron", "tz"} if fields.get("every_ms") is not None else set()
    gone |= {"every_ms"} if fields.get("cron") is not None else set()
    return {name: value for name, value in old.items() if name not in gone}


def set_paused(topics: Topics, topic: str, name: str, *, paused: bool) -> Flow[bool]:
    """Pauses or resumes a schedule. Returns whether that changed it. Raises UnknownSchedule."""
    check_name("schedule", name)

    def changed(before: Definition | None, _: int) -> Schedule:
        return existing_schedule(before, topic, name).model_copy(update={"paused": paused})

    return (yield from change(topics, topic, name, changed)).changed


def delete_schedule(topics: Topics, topic: str, name: str) -> Flow[None]:
    """Deletes a schedule, and takes back its tick ahead. Raises UnknownSchedule."""
    check_name("schedule", name)
    if not (yield from _deleted(topics, topic, name)).existed:
        raise UnknownSchedule(topic, name)


def _deleted(topics: Topics, topic: str, name: str) -> Flow[Change]:
    return (yield from change(topics, topic, name, lambda _, __: None))


def skip_tick(topics: Topics, topic: str, name: str) -> Flow[int | None]:
    """Leaves out the next tick. Returns that tick, in ms since 1970; None for a schedule that has no more."""
    check_name("schedule", name)
    for _ in range(_TRIES):
        home = yield from find_home((yield from topics.resolve_again(topic)))
        if home.is_moving:
            continue
        stored, mark, now_ms = yield [get_definition(home.keys, name), get_mark(home.keys, name), server_time()]
        definition = parse_definition(home.keys, name, stored)
        schedule = existing_schedule(definition, topic, name)
        if definition is None or schedule.paused:
            raise InvalidInput("schedule", name, "one that is not paused")
        if mark is None or mark.version != definition.version:
            continue
        # What is due comes first, and what is ahead may not be sent yet.
        ticked = yield from advance(home, definition, mark, now_ms)
        mark = ticked.mark
        if mark is None or mark.version != definition.version:
            continue
        if mark.due_ms > ticked.now_ms:
            if not mark.is_ahead(ticked.now_ms) or (yield from _takes_back(home, definition, mark)):
                return mark.last_ms
            continue
        tick = next(schedule.ticks_after(mark.last_ms), None)
        if tick is None:
            return None
        left_out = Tick(tick, schedule.due_ms(tick), send=False)
        policy = home.layout.policy
        ticked = yield send_ticks(home.keys, definition, mark=mark, ticks=[left_out], policy=policy)
        if ticked.mark is not None and ticked.mark.last_ms == tick:
            return tick
    raise Refused(f"schedule {name} of {topic} is being changed by others, or is moving to other shards; try again")


def _takes_back(home: Home, definition: Definition, mark: Mark) -> Flow[bool]:
    """Leaves out the tick ahead. Returns False where the schedule was changed, or that tick is due."""
    schedule = definition.schedule
    try:
        written: Written = yield write_schedule(
            *(home.keys, schedule.name, definition.stored),
            before=definition,
            after=schedule,
            first=home.is_first,
            mark=mark,
            following_ms=mark.due_ms,
            skip=True,
        )
    except Resharded:
        return False
    return written.done


def import_schedules(
    topics: Topics, wanted: Mapping[str, Mapping[str, Mapping[str, Any]]], *, prune: Sequence[str]
) -> Flow[ImportedSchedules]:
    """Makes schedules as these are; deletes all others of the topics in `prune`. Checks all before it writes."""
    now_ms: int = yield server_time()
    pruned = [prune] if isinstance(prune, str) else check_list("prune", prune, "topics")
    schedules = _checked(wanted, now_ms)
    for topic in pruned:
        if topic != _ALL and topic not in wanted:
            yield from require_topic(topics.prefix, topic)
    others: list[tuple[str, str]] = []
    for place in [None] if _ALL in pruned else pruned:
        others += [(each.topic, each.name) for each in (yield from list_schedules(topics, place)) if each.name]
    created, changed, unchanged = list[str](), list[str](), list[str]()
    made = yield from _change_each("set", {place: _made(topics, schedule) for place, schedule in schedules.items()})
    for (topic, name), done in made.items():
        outcome = created if not done.existed else changed if done.changed else unchanged
        outcome.append(f"{topic}/{name}")
    gone = sorted({*others} - {*schedules})
    # Others may delete them too.
    before = f"set {len(made)} of {len(made)} schedules; " if made else ""
    ends = yield from _change_each("deleted", {place: _deleted(topics, *place) for place in gone}, before)
    deleted = (f"{topic}/{name}" for (topic, name), end in ends.items() if end.existed)
    return ImportedSchedules(tuple(created), tuple(changed), tuple(unchanged), tuple(deleted))


def _checked(wanted: Mapping[str, Mapping[str, Mapping[str, Any]]], now_ms: int) -> dict[tuple[str, str], Schedule]:
    """The schedules that an import makes, by topic and name."""
    schedules: dict[tuple[str, str], Schedule] = {}
    for topic, of_topic in check_mapping("schedules", wanted).items():
        for name, fields in check_mapping(f"schedules of topic {topic}", of_topic).items():
            check_mapping(f"schedule {topic}/{name}", fields)
            try:
                schedule = Schedule.of(stored_fields(fields) | {"topic": topic, "name": name})
                schedules[topic, name] = schedule.checked(now_ms)
            except InvalidInput as error:
                raise InvalidInput(f"{error.field} of schedule {topic}/{name}", error.value, error.expected) from None
    return schedules


def _made(topics: Topics, schedule: Schedule) -> Flow[Change]:
    """Makes a schedule as this one, but keeps paused what is paused, unless this says otherwise."""

    def changed(before: Definition | None, _: int) -> Schedule:
        if before is None or "paused" in schedule.model_fields_set:
            return schedule
        return schedule.model_copy(update={"paused": before.schedule.paused})

    return (yield from change(topics, schedule.topic, schedule.name, changed))


def _change_each(
    done: str, changes: Mapping[tuple[str, str], Flow[Change]], before: str = ""
) -> Flow[dict[tuple[str, str], Change]]:
    """Makes changes side by side. If some fail, the error says which, and what was done before: the others are made."""
    results = yield from run_each([told_in_part(each) for each in changes.values()])
    made: dict[tuple[str, str], Change] = {}
    failed: dict[str, LisaError] = {}
    for (topic, name), result in zip(changes, results, strict=True):
        if isinstance(result, LisaError):
            failed[f"{topic}/{name}"] = result
        else:
            made[topic, name] = result
    if not failed:
        return made
    error = next(iter(failed.values()))
    if not (made or before) and all(isinstance(each, UNDONE) for each in failed.values()):
        raise error
    names = ", ".join([*islice(failed, _SHOWN), *["…"] * (len(failed) > _SHOWN)])
    text = f"{before}{done} {len(made)} of {len(results)} schedules; failed for {names}: {error}"
    raise OutcomeUnknown(text) from error
