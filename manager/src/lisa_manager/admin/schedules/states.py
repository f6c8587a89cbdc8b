"""Schedules, and how far they have come, for operators."""

from dataclasses import dataclass, field
from itertools import islice, takewhile

from lisa_common.errors import InvalidInput, LisaError, UnknownSchedule
from lisa_common.model.keys import ShardKeys
from lisa_common.model.rhythm import explain_cron, recent_start
from lisa_common.model.schedule import Definition, Mark, Schedule
from lisa_common.model.sharding import Layout
from lisa_common.model.ticks import next_due_ms
from lisa_common.protocol.call import Call, Flow, IndependentCalls, command
from lisa_common.protocol.consuming import server_time
from lisa_common.protocol.registry import Topics
from lisa_common.protocol.schedules import get_definition, get_mark, marks_in, names_in, read_definitions
from lisa_common.protocol.scheduling import find_home
from lisa_common.protocol.side_by_side import run_each
from lisa_common.validation import check_name
from lisa_manager.queries import PAGE, chunks, first_error, list_layouts

__all__ = ["ScheduleState", "existing_schedule", "list_schedules", "read_schedule"]


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
    """Ticks sent since the schedule was made, with the one that is sent ahead."""
    skipped: int = 0
    """Ticks left out since then: missed and not caught up, skipped, or because an earlier one was not done."""
    damage: str = ""
    """Why the definition cannot be read; empty where it can."""
    _handled_ms: int = field(default=0, repr=False)
    """The tick of the mark."""

    @property
    def is_overdue(self) -> bool:
        """Whether a tick was due before this was read, and is not sent yet."""
        return self.next_ms is not None and self.next_ms < self.now_ms

    def next_ticks(self, count: int = 10) -> list[int]:
        """The next ticks, without their jitter; none of a paused schedule."""
        if self.schedule is None or self.schedule.paused:
            return []
        after_ms = self._handled_ms - 1 if self.is_sent_ahead else max(self.now_ms, self._handled_ms)
        return list(islice(self.schedule.ticks_after(after_ms), count))

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
    layouts = (yield from list_layouts(topics.prefix)) if topic is None else [(yield from topics.resolve(topic))]
    found = list[Layout]()
    for page in chunks(layouts, PAGE):
        calls: list[Call[int]] = [
            command("EXISTS", keys.of("schedules")) for layout in page for keys in layout.schedule_homes
        ]
        exist = iter((yield IndependentCalls(calls)))
        # A node that is away is reported below.
        found += [layout for layout in page if any([next(exist) != 0 for _ in layout.schedule_homes])]  # noqa: C419
    results = yield from run_each([_read_topic(layout) for layout in found])
    first_error(results)
    states: list[ScheduleState] = []
    for layout, result in zip(found, results, strict=True):
        if isinstance(result, LisaError):
            damage = f"the schedules of this topic cannot be read: {result}"
            states.append(ScheduleState(layout.topic, "", None, damage=damage))
        else:
            states += result
    return sorted(states, key=lambda state: (state.topic, state.name))


def _read_topic(layout: Layout) -> Flow[list[ScheduleState]]:
    home = yield from find_home(layout)
    now_ms: int = yield server_time()
    names: list[str] = yield names_in(home.keys)
    stored = yield from read_definitions(home.keys, names)
    _, marks = yield marks_in(home.keys)
    return [_state_of(home.keys, name, text, Mark.load(marks.get(name)), now_ms) for name, text in stored.items()]


def read_schedule(topics: Topics, topic: str, name: str) -> Flow[ScheduleState]:
    """One schedule. Raises UnknownSchedule."""
    check_name("schedule", name)
    home = yield from find_home((yield from topics.resolve(topic)))
    now_ms, stored, mark = yield [server_time(), get_definition(home.keys, name), get_mark(home.keys, name)]
    if stored is None:
        raise UnknownSchedule(topic, name)
    return _state_of(home.keys, name, stored, mark, now_ms)


def _state_of(keys: ShardKeys, name: str, stored: bytes, mark: Mark | None, now_ms: int) -> ScheduleState:
    try:
        definition = Definition.load(keys.topic, name, stored)
    except InvalidInput as error:
        return ScheduleState(keys.topic, name, None, now_ms=now_ms, damage=str(error))
    schedule = definition.schedule
    if mark is None or mark.version != definition.version:
        # It was lost, and a manager replaces it.
        mark = Mark(definition.version, definition.since_ms, definition.since_ms, 0, 0, 0, "-")
    is_ahead = mark.is_ahead(now_ms)
    handled_ms = mark.last_ms
    if mark.due_ms > now_ms:
        is_left_out = mark.base_ms == mark.last_ms
        handled_ms = _tick_before(schedule, mark.last_ms, definition.since_ms) if is_left_out else mark.base_ms
    next_ms = None
    if not schedule.paused:
        next_ms = mark.due_ms if is_ahead else next_due_ms(schedule, mark.last_ms)
    return ScheduleState(
        *(keys.topic, name, schedule, definition.version, now_ms),
        last_ms=handled_ms if handled_ms > definition.since_ms else None,
        next_ms=next_ms,
        is_sent_ahead=is_ahead,
        sent=mark.sent,
        skipped=mark.skipped,
        _handled_ms=mark.last_ms,
    )


def _tick_before(schedule: Schedule, tick_ms: int, since_ms: int) -> int:
    """The tick before one, or `since_ms` for none since then."""
    start = recent_start(schedule.ticks_after, since_ms, tick_ms - 1)
    return max(takewhile(lambda tick: tick < tick_ms, schedule.ticks_after(start)), default=since_ms)


def existing_schedule(definition: Definition | None, topic: str, name: str) -> Schedule:
    """The schedule of a definition; raises UnknownSchedule."""
    if definition is None:
        raise UnknownSchedule(topic, name)
    return definition.schedule
