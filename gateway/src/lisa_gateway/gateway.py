"""What the requests of one process share: the clients of Redis, and the polls."""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

from starlette.applications import Starlette

from lisa_common.backoff import RECONNECT
from lisa_common.errors import AccessDenied, LisaError
from lisa_common.logs import event
from lisa_common.observing.health import Health
from lisa_common.observing.manager_watch import ManagerWatch
from lisa_common.observing.server_clock import ServerClock
from lisa_common.settings import Settings
from lisa_consumer import AsyncLender, AsyncSettler, ConsumerSettings
from lisa_gateway.access.quotas import Quota
from lisa_gateway.loop_lag import LoopLag
from lisa_gateway.metrics import METRICS
from lisa_gateway.polls import Polls
from lisa_gateway.problems import Busy
from lisa_gateway.settings import GatewaySettings
from lisa_gateway.topics import KnownTopics
from lisa_manager import AsyncAdmin, TopicEvents
from lisa_producer import AsyncProducer, ProducerSettings

__all__ = ["Gateway", "GroupDesk", "lifespan"]

logger = logging.getLogger(__name__)

_MAX_GROUPS = 256
"""Groups served at once, beside the process's own; each has its own connections, and callers may make names up."""

_IDLE_S = 60.0
"""How long a group without requests keeps its connections."""

_LOOK_S = 1.0
"""How often a gateway asks whether the server answers."""

_CLOCK_S = 10.0
"""How long the server's clock is estimated before the server is asked again."""

_ANSWER_S = 1.5
"""A gateway is not ready while the server has not answered such a question for this long."""


class GroupDesk:
    """Serves the requests of one group: its lender, and its polls."""

    def __init__(self, group: str, settings: ConsumerSettings, most_bytes: int) -> None:
        self.group = group
        self.lender = AsyncLender(group, most_bytes=most_bytes, settings=settings)
        self.polls = Polls(self.lender)
        self.used_s = 0.0
        """When it was asked for last, by the monotonic clock."""


class Gateway:
    """The clients that all requests of a process share. It belongs to the event loop that first uses it.

    `stopping` is set once no new work should begin: polls then end with an empty answer.
    """

    def __init__(self, settings: GatewaySettings) -> None:
        self.settings = settings
        shared = settings.model_dump(include=set(Settings.model_fields))
        self.producer_settings = ProducerSettings(**shared, patience_s=settings.patience_s)
        self.consumer_settings = ConsumerSettings(**shared, patience_s=settings.patience_s)
        self.producer = AsyncProducer(settings=self.producer_settings)
        self.admin = AsyncAdmin(settings=settings, patience_s=settings.patience_s)
        self.settler = AsyncSettler(settings=self.consumer_settings)
        self.topics = KnownTopics(self.admin, settings.group)
        self._clock = ServerClock()
        self._clock_seen_s = float("-inf")
        self.stopping = asyncio.Event()
        self.health = Health()
        """Whether the event loop runs, and the server answered lately."""
        self.managers = ManagerWatch(self.admin.missing_manager)
        self.health.remarks = [lambda: self.managers.absence]
        self._lag = LoopLag()
        self._problem = "the server was not asked yet"
        self._look: asyncio.Task[str] | None = None
        """The question that the server was asked last; probes share it."""
        self._pulse: list[asyncio.Task[None]] = []
        self._desks: OrderedDict[str, GroupDesk] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()
        own = self.desk()
        own.polls.users += 1
        self.lender = own.lender
        """The lender of the group of the settings: it also ends what others have lent, keeps notes and has the time."""
        self._listener: asyncio.Task[None] | None = None
        self.on_close: list[Callable[[], Awaitable[None]]] = []
        """Called first as the gateway closes, by parts that have tasks of their own."""

    def begin(self) -> None:
        """Begins to watch the server and to beat, until the gateway closes."""
        self.health.check("server", lambda: self._problem)
        tasks = self._watch_server(), self.health.run(self._count), self._lag.run(), self.managers.run()
        self._pulse = [asyncio.create_task(task) for task in tasks]

    async def find_problem(self) -> str:
        """Asks the server, for a second and a half at most. Returns why the gateway is not ready; "" if it is."""
        if self.stopping.is_set():
            return "the gateway is stopping"
        before = self._look
        if before is None or before.done():
            self._look = asyncio.create_task(self._ask_server())
        assert self._look is not None  # noqa: S101 - set above
        await asyncio.wait((self._look,), timeout=_ANSWER_S)
        if self._look.done() and not self._look.cancelled():
            return self._look.result()
        known = before.result() if before and before.done() and not before.cancelled() else ""
        return known or f"no answer from the server within {_ANSWER_S:g} s"

    async def _ask_server(self) -> str:
        try:
            await self._see_clock()
        except LisaError as error:
            return str(error)
        return ""

    async def now_ms(self) -> int:
        """The server's time in ms, as estimated: it may be slow by a round trip, and is never fast. Raises LisaError.

        A clock that was set is known from the next look on, within a second.
        """
        if time.monotonic() - self._clock_seen_s > _CLOCK_S:
            await self._see_clock()
        return self._clock.ms_at(time.monotonic())

    async def _see_clock(self) -> None:
        asked = time.monotonic()
        told_ms = await self.lender.server_time()
        self._clock_seen_s = time.monotonic()
        self._clock.see(told_ms, asked, self._clock_seen_s)

    async def _watch_server(self) -> None:
        was_away = False
        while True:
            self._problem = await self.find_problem()
            is_away = bool(self._problem) and not self.stopping.is_set()
            if is_away and not was_away:
                extra = event("server_away", error=self._problem)
                logger.warning("the server does not answer: %s", self._problem, extra=extra)
            elif was_away and not self._problem:
                logger.info("the server answers again", extra=event("server_back"))
            was_away = is_away
            await asyncio.sleep(_LOOK_S)

    def _count(self) -> None:
        METRICS.set("lisa_http_polls", self.count_polls())
        METRICS.set("lisa_http_loop_lag_seconds", self._lag.worst_s)
        self._close_idle()

    def listen(self, hear: Callable[[Mapping[str, TopicEvents]], None]) -> None:
        """Receives the managers' events, from now until the gateway closes. Nothing else waits for it."""
        if self._listener is None and not self.stopping.is_set():
            self._listener = asyncio.create_task(self._listen(hear))

    async def _listen(self, hear: Callable[[Mapping[str, TopicEvents]], None]) -> None:
        failures = 0
        while True:
            try:
                async for events in self.admin.events():
                    failures = 0
                    hear(events)
            except LisaError as error:
                failures += 1
                log = logger.debug if failures > 1 or isinstance(error, AccessDenied) else logger.warning
                log(
                    "cannot receive events of managers, retrying: %s",
                    error,
                    extra=event("events_missed", error=str(error)),
                )
                await asyncio.sleep(RECONNECT.compute(failures))

    def desk(self, group: str | None = None, quota: Quota | None = None) -> GroupDesk:
        """The desk of a group, by default the group of the settings.

        Raises InvalidInput for an invalid name, OverQuota, and Busy if too many groups have requests.
        """
        name = group or self.settings.group
        if quota:
            quota.use_group(name, self._desks)
        desk = self._desks.get(name)
        if desk is None:
            made = GroupDesk(name, self.consumer_settings, self.settings.max_body_bytes)
            if len(self._desks) > _MAX_GROUPS and not self._close_first():
                raise Busy(f"requests of {_MAX_GROUPS} groups are under way")
            desk = self._desks[name] = made
        else:
            self._desks.move_to_end(name)
        desk.used_s = time.monotonic()
        return desk

    def _close_first(self) -> bool:
        """Closes the desk that was asked for the longest ago, of those without requests; False if there is none."""
        for name, desk in self._desks.items():
            if not desk.polls.is_busy:
                self._close_desk(name)
                return True
        return False

    def _close_idle(self) -> None:
        """Closes desks that nobody has asked for lately."""
        latest_s = time.monotonic() - _IDLE_S
        for name, desk in list(self._desks.items()):
            if desk.used_s > latest_s:
                return
            if not desk.polls.is_busy:
                self._close_desk(name)

    def _close_desk(self, name: str) -> None:
        task = asyncio.create_task(self._desks.pop(name).polls.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def count_polls(self) -> int:
        """How many polls wait now, of all groups."""
        return sum(desk.polls.count for desk in self._desks.values())

    def begin_stop(self) -> None:
        """Ends all polls with an empty answer."""
        self.stopping.set()
        for desk in self._desks.values():
            desk.polls.stop()

    async def close(self) -> None:
        """Ends all polls, releases what is unsent, and closes the connections."""
        self.begin_stop()
        for close in self.on_close:
            await close()
        tasks = [*self._pulse, *(task for task in (self._listener, self._look) if task)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(desk.polls.close() for desk in self._desks.values()), *self._closing)
        await self.settler.close()
        await self.producer.close()
        await self.admin.close()


@asynccontextmanager
async def lifespan(application: Starlette) -> AsyncIterator[None]:
    """Watches the server while its block runs, and closes the gateway of an application at the end."""
    gateway: Gateway = application.state.gateway
    gateway.begin()
    try:
        yield
    finally:
        await gateway.close()
