"""The daemon: one connection, one shard table, the promoter in its own loop, and periodic work."""

import asyncio
import logging
import signal
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from lisa_common.backoff import RECONNECT
from lisa_common.client.async_connection import AsyncConnection
from lisa_common.client.async_start import wait_for_server
from lisa_common.client.async_tasks import cancel_all
from lisa_common.client.user_check import check_user
from lisa_common.errors import AccessDenied
from lisa_common.logs import event
from lisa_common.model.keys import ShardKeys
from lisa_common.model.needs import Optional
from lisa_common.model.rights import RoleName
from lisa_common.observing.health import Health
from lisa_common.protocol.managers import RENEW_S
from lisa_common.signals import run_signalled
from lisa_manager import metrics
from lisa_manager.jobs.adopter import Adopter
from lisa_manager.jobs.dead_letterer import DeadLetterer
from lisa_manager.jobs.discoverer import Discoverer
from lisa_manager.jobs.drainer import Drainer
from lisa_manager.jobs.history_writer import HistoryWriter
from lisa_manager.jobs.idle_expirer import IdleExpirer
from lisa_manager.jobs.limits_repairer import LimitsRepairer
from lisa_manager.jobs.loader import Loader
from lisa_manager.jobs.pattern_keeper import PatternKeeper
from lisa_manager.jobs.presence import Presence
from lisa_manager.jobs.promoter import Promoter
from lisa_manager.jobs.reclaimer import Reclaimer
from lisa_manager.jobs.reporter import Reporter
from lisa_manager.jobs.reshard_completer import ReshardCompleter
from lisa_manager.jobs.slot_keeper import SlotKeeper
from lisa_manager.jobs.sweeper import Sweeper
from lisa_manager.jobs.ticker import Ticker
from lisa_manager.jobs.trimmer import Trimmer
from lisa_manager.precise_loop import precise_loop
from lisa_manager.problem_log import ProblemLog
from lisa_manager.server_checks import ANY_TOPIC, examine
from lisa_manager.settings import ManagerSettings
from lisa_manager.shard_table import ShardTable

__all__ = ["Manager", "serve"]

logger = logging.getLogger(__name__)

_GAUGES_S = 60
_REPORT_S = 1.0

_MOST_TURNS = 1_000
"""Most parallel turns of a job. Each serves other nodes, as a turn skips nodes that an earlier turn still serves."""

_SCRIPTS_S = 1.0
"""Users who may not load scripts wait up to this long after a flush. A check costs the server a few microseconds."""

_ASKING = "scripts"
"""The job that asks the server something at each turn, most often of all."""

_SILENT_S = 5 * _SCRIPTS_S
"""After this long without an answer to that job, the manager is not ready."""

_LONGEST_S = 0.005
"""How long a turn holds up the others of its interval."""

_STABLE_S = 10.0
"""A loop that has run for this long restarts with the shortest backoff again."""


def serve(settings: ManagerSettings, *, patience_s: float) -> None:
    """Runs a manager until SIGTERM or SIGINT. Any number may run in parallel; killing any of them loses nothing.

    Waits up to `patience_s` seconds for a server at the start; then raises ServerError.
    Serves its metrics and health if the settings name an address. Raises MissingExtra if that needs more packages.
    """

    async def main() -> None:
        manager = Manager(settings)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, manager.stop)
        manager.health.notifies = True
        with _observed(settings, manager.health):
            await manager.run(patience_s=patience_s)

    run_signalled(main(), loop_factory=precise_loop)


@contextmanager
def _observed(settings: ManagerSettings, health: Health) -> Iterator[None]:
    """Serves metrics and health, and samples the keys, if the settings ask for it."""
    if settings.metrics is None:
        yield
        return
    metrics.register()
    # Imported here, as only this needs the extra.
    from lisa_common.observing import prometheus  # noqa: PLC0415
    from lisa_common.observing.server import serving  # noqa: PLC0415
    from lisa_manager.sampler import Sampler  # noqa: PLC0415

    registry = prometheus.default()
    with Sampler(settings).running() as sampler:
        registry.register(sampler)
        try:
            with serving(settings.metrics, registry, health):
                yield
        finally:
            registry.unregister(sampler)


class _Turns(NamedTuple):
    """A job whose turns begin at equal intervals."""

    job: str
    seconds: float
    most: int
    """Most turns under way at once."""
    turn: Callable[[], Awaitable[None]]


class Manager:
    """One manager. It has no state of its own: it can read everything from the server again."""

    def __init__(self, settings: ManagerSettings) -> None:
        self._settings = settings
        self._connection = AsyncConnection.of(settings, name="lisa-manager")
        self._table = ShardTable(settings.prefix, fallback_s=settings.poll_s)
        self._history_writer = HistoryWriter(self._connection, settings, lambda: self._discoverer.layouts)
        self._reporter = Reporter(self._connection, settings.prefix, self._history_writer)
        self._reclaimer = Reclaimer(self._connection, self._table, settings, self._reporter)
        self._trimmer = Trimmer(self._connection, self._table, settings)
        self._sweeper = Sweeper(self._connection, self._table, settings, self._reporter)
        self._dead_letterer = DeadLetterer(self._connection, self._table, settings)
        self._discoverer = Discoverer(self._connection, self._table)
        self._discovering = asyncio.Lock()
        self._promoter = Promoter(self._connection, self._table, settings, self._reporter)
        self._adopter = Adopter(
            self._connection,
            self._table,
            self._discoverer,
            unknown=self._promoter.unknown_shards,
            discover=self._discover,
        )
        self._drainer = Drainer(self._connection, self._discoverer)
        self._reshard_completer = ReshardCompleter(self._connection, self._discoverer)
        self._idle_expirer = IdleExpirer(self._connection, self._discoverer, settings)
        self._ticker = Ticker(self._connection, self._table, self._discoverer, settings)
        self._limits_repairer = LimitsRepairer(self._connection, self._discoverer)
        self._pattern_keeper = PatternKeeper(self._connection, self._discoverer, settings.prefix)
        self._slot_keeper = SlotKeeper(self._connection, self._discoverer)
        self._loader = Loader(self._connection)
        self._presence = Presence(self._connection, settings.prefix)
        self._problems = ProblemLog(logger)
        self._answered = False
        self._answered_at = time.monotonic()
        self.health = Health()
        """Whether the event loop of this manager runs, its promoter looks, and its server answers."""
        self._stopping = asyncio.Event()
        self._running: defaultdict[str, set[asyncio.Task[None]]] = defaultdict(set)
        """The turns that are under way, by job."""

    def stop(self) -> None:
        """Stops the manager. Call it in the manager's event loop."""
        self._stopping.set()

    async def run(self, *, patience_s: float = 0.0) -> None:
        """Serves all topics until `stop` is called. Raises ServerError only at start, after `patience_s` seconds."""
        async with self._connection:
            async with self.health.waiting("server") as explain:
                is_served = await wait_for_server(
                    self._check_server, patience_s=patience_s, stopping=self._stopping, explain=explain
                )
            if is_served:
                await self._serve()
        logger.info("manager stopped", extra=event("manager_stopped"))

    async def _serve(self) -> None:
        self.health.check("promoter", self._promoter.find_problem)
        self.health.check("server", self._find_server_problem)
        await self._guarded("presence", self._presence.turn)
        running: dict[str, Callable[[], Awaitable[None]]] = {
            "promote": self._promoter.run,
            "listen": self._promoter.listen,
            "adopt": self._adopter.run,
            "health": partial(self.health.run, self._beat),
        }
        for seconds, turns in self._periodic():
            running[f"every {seconds:g} s"] = partial(self._repeat, seconds, turns)
        loops = [asyncio.create_task(self._keep_running(name, loop), name=name) for name, loop in running.items()]
        try:
            await self._stopping.wait()
        finally:
            # They may still use the connection.
            await cancel_all(*loops, *(turn for turns in self._running.values() for turn in turns))
            await self._presence.end()

    async def _keep_running(self, name: str, loop: Callable[[], Awaitable[None]]) -> None:
        """Runs a loop, and restarts it after an error, so that no error of one loop ends the others."""
        failures = 0
        while True:
            started = time.monotonic()
            try:
                await loop()
            except Exception as error:  # noqa: BLE001 - no error may stop the other jobs
                failures = 1 if time.monotonic() - started > _STABLE_S else failures + 1
                self._problems.report(name, error, job=name)
                await asyncio.sleep(RECONNECT.compute(failures))

    async def _check_server(self) -> None:
        try:
            for finding in (await examine(self._connection)).findings:
                logger.warning("%s", finding, extra=event("server_unfit"))
        except AccessDenied as error:
            self._connection.refusals.note(Optional.INFO, error)
        await check_user(self._connection, RoleName.MANAGER, ShardKeys(self._settings.prefix, ANY_TOPIC))
        with self._problems.watching("scripts", job="scripts"):
            await self._loader.turn()
        await self._discover()
        self._answered, self._answered_at = True, time.monotonic()
        count = len(self._table.shards)
        logger.info("manager serves %d shards", count, extra=event("manager_started", shards=count))

    def _periodic(self) -> list[tuple[float, list[_Turns]]]:
        """The periodic jobs, by their interval in seconds."""
        housekeeping_s = self._settings.housekeeping_s
        turns = [
            _Turns("reclaim", housekeeping_s, 1, self._reclaimer.turn),
            _Turns("trim", housekeeping_s, _MOST_TURNS, self._trimmer.turn),
            _Turns("sweep", housekeeping_s, _MOST_TURNS, self._sweeper.turn),
            _Turns("dead-letter", housekeeping_s, _MOST_TURNS, self._dead_letterer.turn),
            _Turns("discover", self._settings.discover_s, 1, self._discover),
            _Turns("drain", self._settings.discover_s, 1, self._drainer.turn),
            _Turns("reshards", self._settings.discover_s, 1, self._reshard_completer.turn),
            _Turns("expire-idle", housekeeping_s, 1, self._idle_expirer.turn),
            _Turns("tick", housekeeping_s, _MOST_TURNS, self._ticker.turn),
            _Turns("limits", self._settings.discover_s, 1, self._limits_repairer.turn),
            _Turns("patterns", self._settings.discover_s, 1, self._pattern_keeper.turn),
            _Turns("slots", self._settings.discover_s, 1, self._slot_keeper.turn),
            _Turns("scripts", _SCRIPTS_S, 1, self._loader.turn),
            _Turns("report", _REPORT_S, 1, self._reporter.turn),
            _Turns("presence", RENEW_S, 1, self._presence.turn),
            _Turns("history", self._settings.history_s, 1, self._history_writer.turn),
            _Turns("gauges", _GAUGES_S, 1, self._gauges),
        ]
        intervals = dict.fromkeys(each.seconds for each in turns)
        return [(seconds, [each for each in turns if each.seconds == seconds]) for seconds in intervals]

    async def _repeat(self, seconds: float, turns: Sequence[_Turns]) -> None:
        """Starts turns at an interval of the monotonic clock: a wall clock that is set back would stop them."""
        clock = asyncio.get_running_loop().time
        # What was left unfinished while no manager ran does not wait for the first interval.
        next_at = clock() + (0 if seconds == self._settings.discover_s else seconds)
        while True:
            await asyncio.sleep(next_at - clock())
            for each in turns:
                # Together they would hold up what falls due meanwhile, and each would need a connection of its own.
                if task := self._start(each):
                    await asyncio.wait([task], timeout=_LONGEST_S)
            next_at = max(next_at + seconds, clock())

    def _start(self, turns: _Turns) -> asyncio.Task[None] | None:
        """Starts a turn, unless too many are under way."""
        if len(running := self._running[turns.job]) >= turns.most:
            return None
        task = asyncio.create_task(self._guarded(turns.job, turns.turn), name=turns.job)
        running.add(task)
        task.add_done_callback(running.discard)
        return task

    async def _guarded(self, name: str, turn: Callable[[], Awaitable[None]]) -> None:
        try:
            with metrics.turn(name):
                await turn()
        except Exception as error:  # noqa: BLE001 - no error may stop the other jobs or the next turn
            self._problems.report(name, error, job=name)
            if name == _ASKING:
                self._answered = False
        else:
            self._problems.resolve(name)
            if name == _ASKING:
                self._answered, self._answered_at = True, time.monotonic()

    def _find_server_problem(self) -> str:
        silent_s = time.monotonic() - self._answered_at
        if not self._answered:
            return f"the last call failed, and the last answer came {silent_s:.1f} s ago"
        return "" if silent_s < _SILENT_S else f"the last answer came {silent_s:.1f} s ago, more than {_SILENT_S:g} s"

    def _beat(self) -> None:
        if not self._table.shards:
            # There is nothing to promote, and the promoter sleeps until there is.
            metrics.note_turn("promote")

    async def _discover(self) -> None:
        # The adopter asks as well, and an earlier look must not be applied after a later one.
        async with self._discovering:
            await self._discoverer.turn()
        self._promoter.wake()

    async def _gauges(self) -> None:
        gauges = {
            "shards": len(self._table.shards),
            "pending": sum(sum(shard.pending.values()) for shard in self._table.shards.values()),
            "promoted": self._promoter.promoted,
            "reclaimed": self._reclaimer.reclaimed,
            "expired": self._sweeper.expired,
            "trimmed": self._trimmer.trimmed,
        }
        logger.info(
            "serving %d shards, %d deliveries pending; since start: %d promoted, %d reclaimed, %d expired, %d trimmed",
            *gauges.values(),
            extra=event("manager_gauges", **gauges),
        )
