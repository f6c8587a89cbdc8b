"""The promoter: sleeps until something is due, then moves it into ready."""

import asyncio
import logging
import math
import re
from collections import Counter, defaultdict, deque
from contextlib import suppress
from functools import partial
from typing import Any

from lisa_common.backoff import RECONNECT
from lisa_common.client.async_connection import AsyncConnection
from lisa_common.errors import LisaError
from lisa_common.model.keys import wake_channel
from lisa_common.model.scores import whole_ms
from lisa_common.protocol import managing
from lisa_common.protocol.call import Call, command
from lisa_common.protocol.consuming import server_time
from lisa_manager.board import Board, Watched
from lisa_manager.complaints import Complaints
from lisa_manager.jobs.adopter import UnknownTopics
from lisa_manager.jobs.lanes import Topics
from lisa_manager.jobs.rounds import Rounds
from lisa_manager.settings import ManagerSettings

__all__ = ["Promoter"]

logger = logging.getLogger(__name__)

# Anybody may publish, and not all that looks like a number fits into a clock.
_WAKE = re.compile(rb"(.+) ([0-9]{1,15})")

_LEASE = re.compile(rb"(.+) ([0-9]{1,15}) lease")
"""Says when a lease ends which is shorter than those of its topic."""

_SOON_S = 10.0
"""A topic with something due within this time is polled often: a wake that was lost would matter."""


def _first_due(topic: Watched, place: str) -> Call[float]:
    return command("ZRANGE", topic.keys.of(place), 0, 0, "WITHSCORES", decode=_due_ms)


def _due_ms(reply: list[Any]) -> float:
    return whole_ms(reply[1]) if reply else math.inf


class _ServerClock:
    """The server's clock by ours: how far it is ahead of the monotonic one, as seen in the latest replies.

    A reply was on its way for a while, so its time is a little behind; of recent ones the most advanced is nearest.
    """

    def __init__(self) -> None:
        self._offsets: deque[float] = deque(maxlen=16)
        self._ahead = 0.0

    def see(self, now_ms: int, moment: float) -> None:
        """Notes the server's time in a reply that arrived at that moment."""
        self._offsets.append(now_ms / 1000 - moment)
        self._ahead = max(self._offsets)

    def moment_of(self, server_ms: float) -> float:
        """When the server's clock will show that time."""
        return server_ms / 1000 - self._ahead


class Promoter:
    """One agenda of all topics, and a lane for each node. The wake channel is a hint; polling is the truth."""

    def __init__(self, connection: AsyncConnection, board: Board, settings: ManagerSettings) -> None:
        self._connection = connection
        self._board = board
        self._settings = settings
        self.unknown_topics = UnknownTopics()
        self._clocks: dict[object, _ServerClock] = defaultdict(_ServerClock)
        """Of each node of a Cluster; else of the one server."""
        self._woken = asyncio.Event()
        self._listening = False
        self._was_busy = False
        self._failures: Counter[object] = Counter()
        """Of each node, since it last answered."""
        self._complaints = Complaints(logger)
        self._rounds = Rounds(connection, board, board.promotions, settings, Complaints(logger))
        self.promoted = 0
        """Messages and retries promoted so far."""

    def wake(self) -> None:
        """Has the agenda looked at again; for whoever changed it."""
        self._woken.set()

    async def run(self) -> None:
        """Promotes until cancelled."""
        async with asyncio.TaskGroup() as serving:
            while True:
                await self._sleep()
                for node in self._rounds.lanes.add(self._board.due(self._board.promotions)):
                    serving.create_task(self._rounds.lanes.serve(node, partial(self._look_patiently, node)))

    async def _sleep(self) -> None:
        while (left := self._left_s()) is None or left > 0:
            # Not wait_for: in Python 3.11 it loses a cancellation that comes together with the wake.
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._woken.wait()
        # Dues that are close together make one round.
        await asyncio.sleep(self._settings.resolution_s if self._was_busy else 0)
        self._was_busy = False

    def _left_s(self) -> float | None:
        """Seconds until the next topic is due, by the agenda of this moment."""
        self._woken.clear()
        moment = self._board.promotions.next_moment()
        return None if moment is None else moment - self._board.clock()

    async def _look_patiently(self, node: object, topics: Topics) -> None:
        """Looks at topics of one node. Where it does not answer, its other topics wait for the next try as well."""
        try:
            await self._look(topics)
        except LisaError as error:
            log = logger.debug if self._failures[node] else logger.warning
            log("cannot promote, will try again: %s", error)
        except Exception as error:  # noqa: BLE001 - whatever it is, the topics of other nodes go on
            self._complaints.about("promote", error)
        else:
            if self._failures.pop(node, 0):
                logger.info("the server is back")
                self._look_at_all(node)
            self._complaints.settled("promote")
            return
        self._failures[node] += 1
        await asyncio.sleep(RECONNECT.compute(self._failures[node]))
        self._look_at_all(node)

    def _look_at_all(self, node: object) -> None:
        """Has all topics of a node looked at now."""
        self._board.look_now([name for name, watched in self._board.topics.items() if self._node_of(watched) == node])
        self.wake()

    async def _look(self, topics: Topics) -> None:
        for _, watched in topics:
            watched.heard = math.inf
        if calm := [topic for topic in topics if topic[1].calm]:
            await self._glance(calm)
        if due := [topic for topic in topics if not topic[1].calm]:
            await self._promote(due)
        self.wake()

    async def _glance(self, topics: Topics) -> None:
        """Looks by plain commands when topics are due next, for the many of which nothing is due."""
        await self._see_times(topics)
        now = self._board.clock()
        for _, watched in topics:
            # Those that cannot be looked at like this are promoted next time, which tells what is wrong with them.
            watched.calm = False
        waiting = await self._rounds.glance(topics, partial(_first_due, place="waiting"))
        first_waiting = {name: due_ms for name, _, due_ms in waiting}
        found = [(name, watched) for name, watched, _ in waiting]
        if found and await self._rounds.any_there(found, "retry"):
            looked = await self._rounds.glance(found, partial(_first_due, place="retry"))
        else:
            looked = waiting
        for name, watched, due_ms in looked:
            self._plan(name, watched, min(due_ms, first_waiting[name]), now)

    async def _see_times(self, topics: Topics) -> None:
        asked = {self._node_of(watched): watched for _, watched in topics}
        # What has no key goes where the call before it went.
        pairs = [call for watched in asked.values() for call in (_first_due(watched, "waiting"), server_time())]
        times = (await self._connection.execute_each(pairs))[1::2]
        now = self._board.clock()
        for node, now_ms in zip(asked, times, strict=True):
            if not isinstance(now_ms, LisaError):
                self._clocks[node].see(now_ms, now)

    def _node_of(self, watched: Watched) -> object:
        return self._connection.node_of(watched.keys)

    def _clock_of(self, watched: Watched) -> _ServerClock:
        return self._clocks[self._node_of(watched)]

    async def _promote(self, topics: Topics) -> None:
        limit = self._settings.promote_batch
        answered = await self._rounds.ask(topics, lambda topic: managing.promote(topic.keys, limit=limit))
        now = self._board.clock()
        for name, watched, result in answered:
            self._clock_of(watched).see(result.now_ms, now)
            self.promoted += result.count
            self._was_busy = self._was_busy or (result.count > 0 and not result.more)
            next_due_ms = math.inf if result.next_due_ms is None else result.next_due_ms
            self._plan(name, watched, result.now_ms if result.more else next_due_ms, now)
            if result.count:
                self._board.trims.hasten(name, now + self._settings.housekeeping_s)

    def _plan(self, name: str, watched: Watched, due_ms: float, now: float) -> None:
        """Puts a topic on the agenda for its next due time, or for a look before that."""
        due = max(now, min(self._clock_of(watched).moment_of(due_ms), watched.heard))
        quiet = self._listening and due - now > _SOON_S
        poll = self._settings.quiet_poll_s if quiet else self._settings.poll_s
        # Polls fall on whole multiples, so that many topics share one round trip.
        tick = min(poll, 1.0)
        look = math.floor((now + poll) / tick) * tick
        watched.calm = look < due
        self._board.promotions.put(name, min(due, look))

    async def listen(self) -> None:
        """Hears of sends that are due before all else, until cancelled."""
        failures = 0
        while True:
            try:
                async for heard in self._connection.listen(wake_channel(self._board.prefix)):
                    failures = 0
                    if not self._listening:
                        # What was sent while nobody listened.
                        self._listening = True
                        self._board.look_now(self._board.topics)
                        self.wake()
                        self.unknown_topics.miss()
                    if heard is not None:
                        self._hear(heard)
            except LisaError as error:
                self._listening = False
                failures += 1
                log = logger.warning if failures == 1 else logger.debug
                log("not woken by sends, polling until they are heard again: %s", error)
                await asyncio.sleep(RECONNECT.compute(failures))

    def _hear(self, heard: bytes) -> None:
        wake = _WAKE.fullmatch(heard)
        if lease := _LEASE.fullmatch(heard):
            self._hear_of_lease(lease[1].decode("utf-8", "replace"), int(lease[2]))
            return
        if wake is None:
            logger.debug("passed over on the wake channel: %r", heard[:80])
            return
        name = wake[1].decode("utf-8", "replace")
        watched = self._board.topics.get(name)
        if watched is None:
            self.unknown_topics.hear(name)
            return
        moment = self._clock_of(watched).moment_of(int(wake[2]))
        # A look that is under way may have come before that send.
        watched.heard = min(watched.heard, moment)
        if self._board.promotions.hasten(name, moment):
            watched.calm = False
            self.wake()

    def _hear_of_lease(self, name: str, ends_ms: int) -> None:
        if watched := self._board.topics.get(name):
            self._board.look_at_leases(name, self._clock_of(watched).moment_of(ends_ms))
