"""The ticker: sends the ticks of schedules, as a rule one ahead of its time, so that the promoter makes it precise.

All managers do the same, without a leader: the mark of a schedule takes each tick from whoever comes first.
"""

import asyncio
import logging
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.errors import OF_THE_SERVER, LisaError, Resharded
from lisa_common.model.keys import ShardKeys
from lisa_common.model.schedule import Mark
from lisa_common.model.sharding import Layout
from lisa_common.model.ticks import next_due_ms, plan
from lisa_common.protocol.call import Call
from lisa_common.protocol.consuming import server_time
from lisa_common.protocol.registry import Topics
from lisa_common.protocol.schedules import (
    ChangeLog,
    Ticked,
    get_mark,
    parse_definition,
    read_definitions,
    read_log,
    send_ticks,
)
from lisa_common.protocol.scheduling import Settled, is_held_up, left_out, mark_shard, retire, settle
from lisa_common.protocol.side_by_side import run_each
from lisa_manager.due_queue import DueQueue
from lisa_manager.metrics import METRICS, ScheduleMetrics
from lisa_manager.problem_log import ProblemLog
from lisa_manager.server_clock import ServerClock
from lisa_manager.settings import ManagerSettings
from lisa_manager.watched_schedule import WatchedSchedule

__all__ = ["Ticker"]

logger = logging.getLogger(__name__)

_PAGE: Final = 100
"""Most schedules in one round trip."""

_REREAD_S: Final = 60.0
"""How often all definitions are read, in case another program changed one without a note in the log."""

_SHORT_MS: Final = 5_000
"""A schedule of a shorter period is served at the moment when its next tick can be sent, not at the next turn."""

_UNUSED_S: Final = 2.0
"""How often to look for a first schedule."""

_REST_S: Final = 1.0
"""Managers wait for a random part of this before they send the next tick ahead, so that mostly one of them does."""

_RETIRE_S: Final = 65.0
"""Time until the marks that a schedule has left behind are looked at: a little more than they have to stay."""


class Ticker:
    """Reads changes of schedules at every turn, and serves those that are due."""

    def __init__(
        self, connection: AsyncConnection, settings: ManagerSettings, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._connection = connection
        self._settings = settings
        self._clock = clock
        self._topics = Topics(settings.prefix)
        self._clocks: dict[object, ServerClock] = defaultdict(ServerClock)
        """By node of a Cluster; by None for the node of the registry."""
        self._watched: dict[str, WatchedSchedule] = {}
        self._due = DueQueue()
        self._exact = DueQueue()
        """Schedules to serve at their moments, which a turn waits for."""
        self._leaving = DueQueue()
        """Schedules that have left marks behind."""
        self._known_changes = -1
        self._reread_at = 0.0
        self._look_at = 0.0
        self._problems = ProblemLog(logger)
        self._metrics = ScheduleMetrics()
        self.sent = 0
        """Ticks sent so far."""

    async def turn(self) -> None:
        """Applies changes, and serves what is due until the next turn. Raises LisaError as the server answers."""
        now = self._clock()
        if not self._watched and now < self._look_at:
            return
        until, self._look_at = now + self._settings.housekeeping_s, now + _UNUSED_S
        await self._read_changes()
        await self._retire_due()
        while True:
            now = self._clock()
            names = [*self._take(self._due, now), *self._take(self._exact, now)]
            for at in range(0, len(names), _PAGE):
                await self._serve([self._watched[name] for name in names[at : at + _PAGE] if name in self._watched])
            moment = self._exact.next_moment()
            if moment is None or moment >= until:
                return
            await asyncio.sleep(max(0.0, moment - self._clock()))

    def _take(self, queue: DueQueue, now: float) -> list[str]:
        return queue.take_due(now, now + self._settings.poll_s)

    async def _read_changes(self) -> None:
        log: ChangeLog = await self._connection.call(read_log(self._settings.prefix))
        now = self._clock()
        names = None if now >= self._reread_at else log.since(self._known_changes)
        if names != [] or self._watched:
            self._clocks[None].see(await self._connection.call(server_time()), self._clock())
        if names == []:
            return
        stored = await self._connection.run(read_definitions(self._settings.prefix, names))
        self._apply(stored, self._watched.keys() | stored.keys() if names is None else names)
        self._known_changes = log.changes
        if names is None:
            self._reread_at = now + _REREAD_S
            self._look_for_former_marks()

    def _apply(self, stored: dict[str, bytes], names: Iterable[str]) -> None:
        """Notes the present definitions of these schedules."""
        for name in names:
            known = self._watched.get(name)
            text = stored.get(name)
            if known is not None and text == known.definition.stored:
                continue
            definition = parse_definition(name, text)
            self._forget(name)
            if definition is not None:
                self._watched[name] = WatchedSchedule(definition)
                self._due.put(name, self._clock())

    def _look_for_former_marks(self) -> None:
        """Has the marks of resharded topics looked at again: a manager may have died while it moved one."""
        for name, each in self._watched.items():
            if each.mark is not None and self._has_former(each):
                each.mark = None
                self._due.put(name, self._clock())

    def _forget(self, name: str) -> None:
        self._watched.pop(name, None)
        for queue in (self._due, self._exact, self._leaving):
            queue.drop(name)
        self._metrics.forget(name)

    async def _serve(self, page: Sequence[WatchedSchedule]) -> None:
        """Puts definitions in force, and sends ticks, for some schedules."""
        await self._read_marks([each for each in page if each.mark is None])
        sends: list[tuple[WatchedSchedule, Call[Ticked]]] = []
        for each in page:
            try:
                if (call := await self._next_call(each)) is not None:
                    sends.append((each, call))
            except LisaError as error:
                # A former shard that cannot be read holds up the schedule that has to look there, and no other.
                self._fail(each.definition.name, error)
        results = await self._connection.execute_each([call for _, call in sends]) if sends else []
        for (each, _), result in zip(sends, results, strict=True):
            await self._note(each, result)

    async def _next_call(self, each: WatchedSchedule) -> Call[Ticked] | None:
        """Sends what is due of a schedule, and its tick ahead; plans the next look where there is nothing to send."""
        if each.mark is None or each.definition.schedule is None:
            return None
        layout = await self._layout_of(each)
        keys = mark_shard(layout, each.definition.name)
        now_ms = self._clock_of(keys).ms_at(self._clock())
        ticks = plan(each.schedule, each.mark.last_ms, now_ms)
        if not ticks or each.mark.due_ms > now_ms:
            self._queue(each, keys, now_ms)
            return None
        if await self._connection.run(is_held_up(layout, each.schedule, each.mark)):
            ticks = left_out(ticks)
        return send_ticks(keys, each.definition, each.schedule, mark=each.mark, ticks=ticks, policy=layout.policy)

    async def _layout_of(self, each: WatchedSchedule) -> Layout:
        layout = self._topics.known(each.schedule.topic)
        return await self._connection.run(self._topics.resolve(each.schedule.topic)) if layout is None else layout

    async def _keys_of(self, each: WatchedSchedule) -> ShardKeys:
        return mark_shard(await self._layout_of(each), each.definition.name)

    async def _read_marks(self, page: Sequence[WatchedSchedule]) -> None:
        """Reads marks, and puts definitions in force whose marks are of another version."""
        plain = [each for each in page if each.definition.schedule is not None and not each.definition.left]
        calls = [get_mark(await self._keys_of(each), each.definition.name) for each in plain]
        marks = await self._connection.execute_each(calls) if calls else []
        for each, mark in zip(plain, marks, strict=True):
            if isinstance(mark, Mark) and mark.version == each.definition.version and not self._has_former(each):
                each.mark = mark
        unsettled = [each for each in page if each.mark is None]
        flows = [settle(self._settings.prefix, self._topics, each.definition) for each in unsettled]
        for each, settled in zip(unsettled, await self._connection.run(run_each(flows)), strict=True):
            await self._note_settled(each, settled)

    def _has_former(self, each: WatchedSchedule) -> bool:
        layout = self._topics.recall(each.schedule.topic)
        return layout is None or bool(layout.former)

    async def _note_settled(self, each: WatchedSchedule, settled: Settled | LisaError) -> None:
        name = each.definition.name
        if isinstance(settled, LisaError):
            self._fail(name, settled)
            return
        definition, marked = settled
        self._problems.resolve(f"schedule {name}")
        if each.definition.left:
            self._leaving.add(name, self._clock() + _RETIRE_S * random.uniform(1, 1.2))
        if definition.schedule is None:
            self._due.drop(name)
        elif marked is None or marked.mark is None:
            # It was changed meanwhile.
            stored = await self._connection.run(read_definitions(self._settings.prefix, [name]))
            self._apply(stored, [name])
        else:
            each.mark = marked.mark
            self._see(await self._keys_of(each), marked.now_ms)

    async def _note(self, each: WatchedSchedule, result: Ticked | LisaError) -> None:
        """Takes in what the server answered to ticks of a schedule."""
        name = each.definition.name
        if isinstance(result, Resharded):
            await self._connection.run(self._topics.resolve_anew(each.schedule.topic))
            each.mark = None
            self._due.put(name, self._clock())
            return
        if isinstance(result, LisaError):
            self._fail(name, result)
            return
        self._problems.resolve(f"schedule {name}")
        keys = await self._keys_of(each)
        self._see(keys, result.now_ms)
        self.sent += result.sent
        self._metrics.count(name, sent=result.sent, skipped=result.skipped)
        if result.mark is None or result.mark.version != each.definition.version:
            each.mark = None
            stored = await self._connection.run(read_definitions(self._settings.prefix, [name]))
            self._apply(stored, [name])
            if name in self._watched:
                self._due.put(name, self._clock())
            return
        has_moved = each.mark is None or result.mark.last_ms != each.mark.last_ms
        each.mark = result.mark
        self._queue(each, keys, result.now_ms, retry=not has_moved)

    def _queue(self, each: WatchedSchedule, keys: ShardKeys, now_ms: int, *, retry: bool = False) -> None:
        """Plans the next look at a schedule."""
        name, mark, schedule = each.definition.name, each.mark, each.schedule
        self._due.drop(name)
        self._exact.drop(name)
        next_ms = None
        if mark is not None and not schedule.paused:
            next_ms = mark.due_ms if mark.due_ms > now_ms else next_due_ms(schedule, mark.last_ms)
        if mark is None or next_ms is None:
            self._metrics.forget(name)
            return
        self._metrics.expect(name, next_ms)
        clock, now = self._clock_of(keys), self._clock()
        if schedule.overlap == "skip":
            self._exact.put(name, max(clock.moment_of(next_ms), now + retry * self._settings.resolution_s))
        elif mark.due_ms <= now_ms:
            self._due.put(name, now + retry * self._settings.poll_s)
        else:
            gap_ms = mark.last_ms - mark.base_ms
            rest_s = random.uniform(0, min(_REST_S, gap_ms / 4_000))
            queue = self._exact if gap_ms < _SHORT_MS else self._due
            queue.put(name, clock.moment_of(next_ms) + rest_s)

    async def _retire_due(self) -> None:
        for name in self._take(self._leaving, self._clock()):
            if (each := self._watched.get(name)) is None:
                continue
            try:
                done = await self._connection.run(retire(self._settings.prefix, self._topics, each.definition))
            except LisaError as error:
                self._fail(name, error)
                done = False
            if not done:
                self._leaving.put(name, self._clock() + _REST_S * random.uniform(5, 10))

    def _fail(self, name: str, error: LisaError) -> None:
        if isinstance(error, OF_THE_SERVER) and self._connection.node_of(ShardKeys(self._settings.prefix, "")) is None:
            # All schedules are at this server; the job reports it once.
            raise error
        METRICS.count("lisa_manager_errors_total", "tick")
        self._problems.report(f"schedule {name}", error, schedule=name)
        self._due.put(name, self._clock() + self._settings.poll_s)

    def _clock_of(self, keys: ShardKeys) -> ServerClock:
        node = self._connection.node_of(keys)
        return self._clocks[node if node in self._clocks else None]

    def _see(self, keys: ShardKeys, now_ms: int) -> None:
        self._clocks[self._connection.node_of(keys)].see(now_ms, self._clock())
