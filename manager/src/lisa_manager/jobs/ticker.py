"""The ticker: sends the ticks of schedules, as a rule one ahead of its time, so that the promoter makes it precise.

All managers do the same, without a leader: the mark of a schedule takes each tick from whoever comes first.
"""

import asyncio
import logging
import math
import random
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.errors import LisaError, Refused
from lisa_common.model.keys import ShardKeys
from lisa_common.model.schedule import Definition, Mark
from lisa_common.model.sharding import Layout
from lisa_common.model.ticks import next_due_ms
from lisa_common.observing.server_clock import ServerClock
from lisa_common.protocol.call import Call, Flow, command
from lisa_common.protocol.consuming import server_time
from lisa_common.protocol.registry import Topics
from lisa_common.protocol.schedules import (
    Ticked,
    marks_in,
    names_in,
    parse_definition,
    read_definitions,
    write_schedule,
)
from lisa_common.protocol.scheduling import Home, find_home, move, send_page
from lisa_common.protocol.side_by_side import run_each
from lisa_manager.due_queue import DueQueue
from lisa_manager.jobs.discoverer import Discoverer
from lisa_manager.metrics import METRICS, ScheduleMetrics
from lisa_manager.problem_log import ProblemLog
from lisa_manager.queries import chunks, first_error, require_topic
from lisa_manager.schedule_migration import migrate_schedules
from lisa_manager.settings import ManagerSettings
from lisa_manager.shard_table import ShardTable

__all__ = ["Ticker"]

logger = logging.getLogger(__name__)

_PAGE: Final = 100
"""Most schedules in one round trip."""

_SCAN: Final = "scan"
"""The group of the look for topics with schedules."""

_SCAN_PAGE: Final = 1_000
"""Most topics in one round trip of it."""

_SCAN_S: Final = 2.0
"""How often to look which topics have schedules, in case a wake was lost: with many topics, a second for each page."""

_MIGRATE_S: Final = 60.0
"""How often to look for schedules of a development version: at the start, and rarely afterwards."""

_SHORT_MS: Final = 5_000
"""A schedule of a shorter period is served at the moment when its next tick can be sent, not at the next turn."""

_STEP_MS: Final = 1_000
"""By how much the server's clock jumps ahead of ours where one of them was set, or stood still."""

_REST_S: Final = 1.0
"""Managers wait for a random part of this before they send the next tick ahead, so that mostly one of them does."""


class _Group:
    """Topics that are served together: those of one node, or one that is being resharded, as it needs other nodes."""

    def __init__(self) -> None:
        self.clock = ServerClock()
        self.due = DueQueue()
        """Schedules, by tag."""

    def see(self, server_ms: float, began: float) -> None:
        """Notes the server's time in a reply that has just come."""
        now = time.monotonic()
        expected_ms = self.clock.ms_at(now)
        self.clock.see(server_ms, began, now)
        if self.clock.ms_at(now) - expected_ms > _STEP_MS:
            # Its clock was set forward, or this machine slept: ticks are due sooner than was planned.
            self.due.take_due(math.inf, now)


@dataclass(slots=True)
class _Topic:
    """A topic that has schedules."""

    layout: Layout
    key: object
    """That of its group."""
    group: _Group
    home: Home | None = None
    """As it was when all schedules were read, with the clock that changes with each of them; None before that."""
    schedules: "dict[str, _Watched]" = field(default_factory=dict)


@dataclass(slots=True)
class _Watched:
    """A schedule, and how far it has come."""

    topic: _Topic
    home: Home
    definition: Definition
    mark: Mark

    @property
    def tag(self) -> str:
        """Names the schedule in logs and queues."""
        return f"{self.topic.layout.topic}/{self.definition.schedule.name}"


class Ticker:
    """Reads changes of schedules at every turn, and serves those that are due.

    Groups are served side by side, so that a node that hangs stops its own topics only.
    """

    def __init__(
        self,
        connection: AsyncConnection,
        table: ShardTable,
        discoverer: Discoverer,
        settings: ManagerSettings,
    ) -> None:
        self._connection = connection
        self._table = table
        self._discoverer = discoverer
        self._settings = settings
        self._topics: dict[str, _Topic] = {}
        self._groups: dict[object, _Group] = defaultdict(_Group)
        self._busy: set[object] = set()
        """The groups that an earlier turn still serves."""
        self._scan_at = self._migrate_at = 0.0
        self._problems = ProblemLog(logger)
        self._metrics = ScheduleMetrics()

    async def turn(self) -> None:
        """Applies changes, and serves what is due until the next turn. Raises LisaError as the server answers."""
        until = time.monotonic() + self._settings.housekeeping_s
        if time.monotonic() >= self._scan_at and _SCAN not in self._busy:
            await self._guarded(_SCAN, self._scan)
        self._follow_registry()
        served: dict[object, list[_Topic]] = defaultdict(list)
        for topic in self._topics.values():
            if topic.key not in self._busy:
                served[topic.key].append(topic)
        await asyncio.gather(
            *(self._guarded(key, partial(self._serve, topics, until)) for key, topics in served.items())
        )

    async def _guarded(self, group: object, work: Callable[[], Awaitable[None]]) -> None:
        node = self._connection.node_of(ShardKeys(self._table.prefix, ""))
        self._busy.add(group)
        try:
            with self._problems.watching(f"schedules of {group}", node=node, job="tick"):
                await work()
        finally:
            self._busy.discard(group)

    async def _scan(self) -> None:
        """Looks which topics have schedules."""
        layouts = [layout for name, layout in self._discoverer.layouts.items() if name not in self._topics]
        self._scan_at = time.monotonic() + max(_SCAN_S, len(layouts) / _SCAN_PAGE)
        topic_of = {keys.of("schedules"): layout.topic for layout in layouts for keys in layout.schedule_homes}
        for page in chunks(list(topic_of), _SCAN_PAGE):
            # Mostly none of them exists, and one command tells.
            (count,) = await self._connection.execute_each([command("EXISTS", *page)])
            if count != 0:
                found = await self._connection.execute_each([command("EXISTS", key) for key in page])
                self._table.scheduled |= {topic_of[key] for key, exists in zip(page, found, strict=True) if exists == 1}
        if time.monotonic() >= self._migrate_at:
            await self._connection.run(migrate_schedules(Topics(self._table.prefix)))
            self._migrate_at = time.monotonic() + _MIGRATE_S

    def _follow_registry(self) -> None:
        """Takes in new topics with schedules, layouts and nodes that have changed, and drops."""
        layouts = self._discoverer.layouts
        found = {name for name in self._table.scheduled if name in layouts}
        self._table.scheduled -= found
        for name in {*self._topics, *found}:
            topic, layout = self._topics.get(name), layouts.get(name)
            key = name if layout and layout.former else layout and self._connection.node_of(layout.shards[0])
            if topic and (not layout or (topic.layout.policy, topic.key) != (layout.policy, key)):
                self._forget_topic(topic)
            if layout and name not in self._topics:
                self._topics[name] = _Topic(layout, key, self._groups[key])

    async def _serve(self, topics: Sequence[_Topic], until: float) -> None:
        """Serves the topics of a group until the next turn."""
        await self._look(topics)
        known = {each.tag: each for topic in topics for each in topic.schedules.values()}
        group = topics[0].group
        while True:
            now = time.monotonic()
            due = [known[tag] for tag in group.due.take_due(now, now + self._settings.poll_s) if tag in known]
            for at in range(0, len(due), _PAGE):
                await self._send(group, due[at : at + _PAGE])
            moment = group.due.next_moment()
            if moment is None or moment >= until:
                return
            await asyncio.sleep(max(0.0, moment - time.monotonic()))

    async def _look(self, topics: Sequence[_Topic]) -> None:
        """Reads the schedules of those topics again whose clock has moved."""
        flows = [_read(topic) for topic in topics]
        results = await self._connection.run(run_each(flows, width=_SCAN_PAGE))
        first_error(results)
        for topic, result in zip(topics, results, strict=True):
            if isinstance(result, LisaError):
                self._fail(topic.layout.topic, result)
                continue
            self._problems.resolve(f"schedule {topic.layout.topic}")
            if result is not None:
                self._take(topic, result)
        # A call without a key goes to the node of the call before it.
        asked: Call[int] = command("EXISTS", topics[-1].layout.shards[0].of("ticks"))
        began = time.monotonic()
        _, now_ms = await self._connection.execute([asked, server_time()])
        topics[0].group.see(now_ms, began)

    def _take(self, topic: _Topic, read: Mapping[str, _Watched | None]) -> None:
        """Takes in what was read."""
        served = {name: each for name, each in read.items() if each is not None}
        self._forget_schedules(topic, [name for name in topic.schedules if name not in served])
        for name, each in served.items():
            if topic.schedules.get(name) is not each:
                topic.schedules[name] = each
                topic.group.due.put(each.tag, time.monotonic())
        if not read:
            self._forget_topic(topic)

    def _forget_topic(self, topic: _Topic) -> None:
        self._forget_schedules(topic, [*topic.schedules])
        self._topics.pop(topic.layout.topic, None)

    def _forget_schedules(self, topic: _Topic, names: Sequence[str]) -> None:
        for name in names:
            each = topic.schedules.pop(name)
            topic.group.due.drop(each.tag)
            self._metrics.forget(topic.layout.topic, name)

    async def _send(self, group: _Group, page: Sequence[_Watched]) -> None:
        """Sends a page of ticks of each of some schedules of one group: one that catches up holds up no other."""
        began = time.monotonic()
        now_ms = group.clock.ms_at(began)
        flows = [send_page(each.home, each.definition, each.mark, now_ms) for each in page]
        results = await self._connection.run(run_each(flows))
        # What a full server refuses is a problem of each schedule: the next turn has nothing to send, and ends well.
        first_error(result for result in results if not isinstance(result, Refused))
        for each, result in zip(page, results, strict=True):
            if isinstance(result, LisaError):
                self._fail(each.tag, result)
            else:
                self._note(each, result, began)

    def _note(self, each: _Watched, result: Ticked, began: float) -> None:
        """Takes in what the server answered to ticks of a schedule, which were sent from `began` on."""
        self._problems.resolve(f"schedule {each.tag}")
        topic, name = each.topic.layout.topic, each.definition.schedule.name
        self._metrics.count(topic, name, sent=result.sent, skipped=result.skipped)
        if result.mark is None or result.mark.version != each.definition.version:
            # It was changed, or has moved. The next turn reads it again.
            each.topic.home = None
            return
        has_moved = result.mark.last_ms != each.mark.last_ms
        if result.is_told:
            # Also where nothing was due: the server's clock may have been set back.
            each.topic.group.see(result.now_ms, began)
        each.mark = result.mark
        self._queue(each, result.now_ms, retry=not has_moved)

    def _queue(self, each: _Watched, now_ms: int, *, retry: bool) -> None:
        """Plans the next look at a schedule; with `retry`, not at once."""
        topic, schedule, mark = each.topic.layout.topic, each.definition.schedule, each.mark
        queue, now = each.topic.group.due, time.monotonic()
        queue.drop(each.tag)
        next_ms = None
        if not schedule.paused:
            next_ms = mark.due_ms if mark.due_ms > now_ms else next_due_ms(schedule, mark.last_ms)
        if next_ms is None:
            self._metrics.forget(topic, schedule.name)
            return
        self._metrics.expect(topic, schedule.name, next_ms)
        moment = each.topic.group.clock.moment_of(next_ms)
        if schedule.overlap == "skip":
            # It came a moment too early, or a full topic takes no tick.
            rest_s = self._settings.poll_s if next_ms <= now_ms else self._settings.resolution_s
            queue.put(each.tag, max(moment, now + retry * rest_s))
        elif mark.due_ms <= now_ms:
            queue.put(each.tag, now + retry * self._settings.poll_s)
        else:
            gap_ms = mark.last_ms - mark.base_ms
            moment += random.uniform(0, min(_REST_S, gap_ms / 4_000))
            # Those of long periods share their turns.
            turn_s = 0.0 if gap_ms < _SHORT_MS else self._settings.housekeeping_s
            queue.put(each.tag, math.ceil(moment / turn_s) * turn_s if turn_s else moment)

    def _fail(self, tag: str, error: LisaError) -> None:
        METRICS.count("lisa_manager_errors_total", "tick")
        self._problems.report(f"schedule {tag}", error, schedule=tag)


def _read(topic: _Topic) -> Flow[dict[str, _Watched | None] | None]:
    """Reads the schedules of a topic that are not known. Returns all by name, with None for those that are damaged.

    Returns None where the clock says that nothing has changed.
    """
    home = yield from find_home(topic.layout)
    if home.is_moving or (home.clock is None and topic.layout.former):
        # Whoever began that may have died since; or there are none yet, and workers cannot make the first.
        yield from move((yield from require_topic(home.keys.prefix, home.keys.topic)))
        return {"": None}
    if home.clock is not None and home == topic.home:
        return None
    # In this order, as a change that comes in between moves the clock.
    (clock, texts), names = yield [marks_in(home.keys), names_in(home.keys)]
    read: dict[str, _Watched | None] = dict.fromkeys(names)
    marks = {name: Mark.load(texts.get(name)) for name in names}
    for name, each in topic.schedules.items():
        mark = marks.get(name)
        if mark is not None and mark.version == each.definition.version and each.home.keys == home.keys:
            read[name] = each
    unknown = [name for name, each in read.items() if each is None]
    for name, text in (yield from read_definitions(home.keys, unknown)).items():
        definition, mark = parse_definition(home.keys, name, text), marks[name]
        if definition is not None and mark is not None and mark.version == definition.version:
            read[name] = _Watched(topic, home, definition, mark)
        elif definition is not None:
            # Its mark was lost, or it was changed meanwhile. It gets a new version and a mark of that.
            after = definition.schedule
            yield write_schedule(home.keys, name, text, before=definition, after=after, first=home.is_first)
    topic.home = home._replace(clock=clock)
    return read
