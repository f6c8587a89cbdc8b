"""Schedules, and how far they have come, for operators."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

from lisa_common.errors import InvalidInput, LisaError, UnknownSchedule
from lisa_common.model.rhythm import explain_cron
from lisa_common.model.schedule import Definition, Mark, Schedule
from lisa_common.model.sharding import Layout
from lisa_common.protocol.call import Flow
from lisa_common.protocol.consuming import server_time
from lisa_common.protocol.registry import Topics
from lisa_common.protocol.schedules import get_definition, get_mark, parse_definition, read_definitions
from lisa_common.protocol.side_by_side import run_each
from lisa_common.validation import check_name

__all__ = ["ScheduleState", "existing_schedule", "list_schedules", "read_schedule"]


@dataclass(frozen=True, slots=True)
class ScheduleState:
    """A schedule, and how far it has come. Moments are ms since 1970, by the server's clock."""

    name: str
    schedule: Schedule | None
    """None for a damaged definition."""
    version: int = 0
    """Grows with each change."""
    now_ms: int = 0
    """When this was read."""
    last_ms: int | None = None
    """The latest tick that was due and sent, or left out; None for none of this rhythm yet."""
    next_ms: int | None = None
    """When the next tick is due: None for a paused schedule, and after the last tick."""
    is_sent_ahead: bool = False
    """Whether the message of the next tick is in the topic already, waiting."""
    sent: int = 0
    """Ticks sent since the schedule was made."""
    skipped: int = 0
    """Ticks left out since then: missed and not caught up, skipped, or because an earlier one was not done."""
    damage: str = ""
    """Why the definition cannot be read, or how far the schedule has come; empty where both can."""
    _mark: Mark | None = field(default=None, repr=False)

    @property
    def is_overdue(self) -> bool:
        """Whether a tick was due before this was read, and is not sent yet."""
        return self.next_ms is not None and self.next_ms < self.now_ms

    def next_ticks(self, count: int = 10) -> list[int]:
        """The next ticks, without their jitter; none of a paused schedule."""
        if self.schedule is None or self.schedule.paused:
            return []
        is_ahead = self.is_sent_ahead and self._mark is not None
        after_ms = self._mark.last_ms - 1 if is_ahead and self._mark else self._after_ms
        return list(islice(self.schedule.ticks_after(after_ms), count))

    @property
    def _after_ms(self) -> int:
        return max(self.now_ms, self._mark.last_ms if self._mark else 0)

    @property
    def in_words(self) -> str:
        """The rhythm in words."""
        if self.schedule is None:
            return ""
        if self.schedule.every_ms is not None:
            return f"Every {_shown_ms(self.schedule.every_ms)}"
        return f"{explain_cron(self.schedule.cron or '')} ({self.schedule.tz})"


def _shown_ms(ms: int) -> str:
    for unit_ms, unit in ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"), (1_000, "second")):
        if ms % unit_ms == 0:
            return f"{ms // unit_ms} {unit}s" if ms != unit_ms else unit
    return f"{ms} ms"


def list_schedules(prefix: str, topics: Topics, topic: str | None = None) -> Flow[list[ScheduleState]]:
    """All schedules by name, or those of one topic."""
    stored = yield from read_definitions(prefix)
    now_ms: int = yield server_time()
    states: list[ScheduleState] = []
    definitions = []
    for name, text in sorted(stored.items()):
        definition = parse_definition(name, text)
        if definition is None:
            states.append(ScheduleState(name, None, now_ms=now_ms, damage=_damage_of(name, text)))
        elif definition.schedule is not None:
            definitions.append((definition, definition.schedule))
    if topic is not None:
        check_name("topic", topic)
        states, definitions = [], [each for each in definitions if each[1].topic == topic]
    states += yield from _read_states(topics, definitions, now_ms)
    return sorted(states, key=lambda state: state.name)


def _damage_of(name: str, text: bytes) -> str:
    try:
        Definition.load(name, text)
    except InvalidInput as error:
        return str(error)
    return ""


def _read_states(
    topics: Topics, definitions: Sequence[tuple[Definition, Schedule]], now_ms: int
) -> Flow[list[ScheduleState]]:
    layouts = yield from topics.resolve_each({schedule.topic for _, schedule in definitions})
    marks = yield from run_each([_find_mark(layouts[schedule.topic], schedule.name) for _, schedule in definitions])
    return [_state_of(*each, mark, now_ms) for each, mark in zip(definitions, marks, strict=True)]


def _find_mark(layout: Layout, name: str) -> Flow[Mark | None]:
    """After a reshard a mark stays in its former shard until a manager has moved it."""
    marks: list[Mark | None] = yield [get_mark(keys, name) for keys in layout.homes(name)]
    return next((mark for mark in marks if mark is not None), None)


def _state_of(definition: Definition, schedule: Schedule, mark: Mark | LisaError | None, now_ms: int) -> ScheduleState:
    if isinstance(mark, LisaError):
        damage = f"its mark cannot be read: {mark}"
        return ScheduleState(definition.name, schedule, definition.version, now_ms, damage=damage)
    if mark is not None and mark.version != definition.version:
        mark = None
    is_ahead = mark is not None and mark.due_ms > now_ms and mark.id != "-"
    last_ms = None
    next_ms: int | None = None
    if mark is not None and not schedule.paused:
        if is_ahead:
            next_ms = mark.due_ms
        else:
            tick = next(schedule.ticks_after(mark.last_ms), None)
            next_ms = None if tick is None else schedule.due_ms(tick)
    elif mark is None and not schedule.paused:
        tick = next(schedule.ticks_after(definition.since_ms), None)
        next_ms = None if tick is None else schedule.due_ms(tick)
    if mark is not None:
        handled_ms = mark.base_ms if mark.due_ms > now_ms else mark.last_ms
        last_ms = handled_ms if handled_ms > definition.since_ms else None
    return ScheduleState(
        *(definition.name, schedule, definition.version, now_ms),
        last_ms=last_ms,
        next_ms=next_ms,
        is_sent_ahead=is_ahead,
        sent=mark.sent if mark else 0,
        skipped=mark.skipped if mark else 0,
        _mark=mark,
    )


def read_schedule(prefix: str, topics: Topics, name: str) -> Flow[ScheduleState]:
    """One schedule. Raises UnknownSchedule."""
    check_name("schedule", name)
    stored: bytes | None = yield get_definition(prefix, name)
    definition = parse_definition(name, stored)
    now_ms: int = yield server_time()
    if definition is None and stored is not None:
        return ScheduleState(name, None, now_ms=now_ms, damage=_damage_of(name, stored))
    if definition is None or definition.schedule is None:
        raise UnknownSchedule(name)
    [state] = yield from _read_states(topics, [(definition, definition.schedule)], now_ms)
    return state


def existing_schedule(definition: Definition | None, name: str) -> Schedule:
    """The schedule of a definition; raises UnknownSchedule."""
    if definition is None or definition.schedule is None:
        raise UnknownSchedule(name)
    return definition.schedule
