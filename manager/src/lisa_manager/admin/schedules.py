"""Schedules, and how far they have come, for operators."""

from dataclasses import dataclass, field
from itertools import islice

from lisa_common.errors import OF_THE_SERVER, InvalidInput, LisaError, UnknownSchedule
from lisa_common.model.keys import ShardKeys
from lisa_common.model.rhythm import explain_cron
from lisa_common.model.schedule import Definition, Mark, Schedule
from lisa_common.model.sharding import Layout
from lisa_common.model.ticks import next_due_ms
from lisa_common.protocol.call import Call, Each, Flow, command
from lisa_common.protocol.consuming import server_time
from lisa_common.protocol.registry import Topics, read_registry
from lisa_common.protocol.schedules import get_definition, get_mark, names_in, read_definitions
from lisa_common.protocol.scheduling import find_home
from lisa_common.protocol.side_by_side import run_each
from lisa_common.validation import check_name

__all__ = ["ScheduleState", "existing_schedule", "list_schedules", "read_schedule"]

_PAGE = 1_000
"""Most topics, or schedules of one, in one round trip."""


@dataclass(frozen=True, slots=True)
class ScheduleState:
    """A schedule, and how far it has come. Moments are ms since 1970, by the server's clock."""

    topic: str
    name: str
    """Empty where the schedules of the topic cannot be read at all."""
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


def list_schedules(topics: Topics, topic: str | None = None) -> Flow[list[ScheduleState]]:
    """All schedules by topic and name, or those of one topic."""
    if topic is not None:
        layouts = [(yield from topics.resolve(topic))]
    else:
        layouts = [
            Layout(topics.prefix, name, each.policy) for name, each in (yield from read_registry(topics.prefix)).items()
        ]
    found = list[Layout]()
    for at in range(0, len(layouts), _PAGE):
        page = layouts[at : at + _PAGE]
        calls: list[Call[int]] = [
            command("EXISTS", keys.of("schedules")) for layout in page for keys in layout.schedule_homes
        ]
        exist = iter((yield Each(calls)))
        # A node that is away is reported below.
        found += [layout for layout in page if any([next(exist) != 0 for _ in layout.schedule_homes])]  # noqa: C419
    states: list[ScheduleState] = []
    for layout, result in zip(found, (yield from run_each([_read_topic(layout) for layout in found])), strict=True):
        if isinstance(result, OF_THE_SERVER):
            raise result
        states += [_unreadable(layout, str(result))] if isinstance(result, LisaError) else result
    return sorted(states, key=lambda state: (state.topic, state.name))


def _unreadable(layout: Layout, error: str) -> ScheduleState:
    return ScheduleState(layout.topic, "", None, damage=f"the schedules of this topic cannot be read: {error}")


def _read_topic(layout: Layout) -> Flow[list[ScheduleState]]:
    keys = yield from _home_of(layout)
    now_ms: int = yield server_time()
    names: list[str] = yield names_in(keys)
    stored = yield from read_definitions(keys, names)
    marks = list[Mark | LisaError | None]()
    for at in range(0, len(names), _PAGE):
        marks += yield Each([get_mark(keys, name) for name in names[at : at + _PAGE]])
    return [
        _read_state(keys, name, stored[name], mark, now_ms)
        for name, mark in zip(names, marks, strict=True)
        if name in stored
    ]


def _home_of(layout: Layout) -> Flow[ShardKeys]:
    if not layout.former:
        # Its schedules are listed even where nobody can read their marks.
        return layout.shards[0]
    return (yield from find_home(layout)).keys


def _read_state(keys: ShardKeys, name: str, stored: bytes, mark: Mark | LisaError | None, now_ms: int) -> ScheduleState:
    try:
        definition = Definition.load(keys.topic, name, stored)
    except InvalidInput as error:
        return ScheduleState(keys.topic, name, None, now_ms=now_ms, damage=str(error))
    return _state_of(definition, mark, now_ms)


def _state_of(definition: Definition, mark: Mark | LisaError | None, now_ms: int) -> ScheduleState:
    schedule = definition.schedule
    place = schedule.topic, schedule.name, schedule, definition.version, now_ms
    if isinstance(mark, LisaError):
        return ScheduleState(*place, damage=f"its mark cannot be read: {mark}")
    if mark is not None and mark.version != definition.version:
        mark = None
    is_ahead = mark is not None and mark.due_ms > now_ms and mark.id != "-"
    last_ms = next_ms = None
    if mark is not None:
        handled_ms = mark.base_ms if mark.due_ms > now_ms else mark.last_ms
        last_ms = handled_ms if handled_ms > definition.since_ms else None
    if mark is not None and is_ahead:
        next_ms = mark.due_ms
    else:
        next_ms = next_due_ms(schedule, mark.last_ms if mark else definition.since_ms)
    return ScheduleState(
        *place,
        last_ms=last_ms,
        next_ms=None if schedule.paused else next_ms,
        is_sent_ahead=is_ahead,
        sent=mark.sent if mark else 0,
        skipped=mark.skipped if mark else 0,
        _mark=mark,
    )


def read_schedule(topics: Topics, topic: str, name: str) -> Flow[ScheduleState]:
    """One schedule. Raises UnknownSchedule."""
    check_name("schedule", name)
    layout = yield from topics.resolve(topic)
    keys = yield from _home_of(layout)
    now_ms, stored, mark = yield Each((server_time(), get_definition(keys, name), get_mark(keys, name)))
    for result in (stored, now_ms):
        if isinstance(result, LisaError):
            raise result
    if stored is None:
        raise UnknownSchedule(topic, name)
    return _read_state(keys, name, stored, mark, now_ms)


def existing_schedule(definition: Definition | None, topic: str, name: str) -> Schedule:
    """The schedule of a definition; raises UnknownSchedule."""
    if definition is None:
        raise UnknownSchedule(topic, name)
    return definition.schedule
