"""The daemon: one connection, one shard table, the promoter in its own loop, all periodic work by APScheduler."""

import asyncio
import logging
import signal
import time
from collections.abc import Awaitable, Callable

from apscheduler.schedulers.asyncio import AsyncIOScheduler

from lisa_common.backoff import RECONNECT
from lisa_common.client.async_connection import AsyncConnection, cancel_all
from lisa_common.errors import LisaError
from lisa_manager.jobs.adopter import Adopter
from lisa_manager.jobs.discoverer import Discoverer
from lisa_manager.jobs.doorkeeper import Doorkeeper
from lisa_manager.jobs.drainer import Drainer
from lisa_manager.jobs.loader import Loader
from lisa_manager.jobs.promoter import Promoter
from lisa_manager.jobs.reclaimer import Reclaimer
from lisa_manager.jobs.sweeper import Sweeper
from lisa_manager.jobs.trimmer import Trimmer
from lisa_manager.problem_log import ProblemLog
from lisa_manager.server_checks import examine
from lisa_manager.settings import ManagerSettings
from lisa_manager.shard_table import ShardTable

__all__ = ["Manager", "serve"]

logger = logging.getLogger(__name__)

_GAUGES_S = 60

_TURNS = 1_000
"""Most parallel turns of a job. Each serves other nodes, as a turn skips nodes that an earlier turn still serves."""

_SCRIPTS_S = 1.0
"""Users who may not load scripts wait up to this long after a flush. A check costs the server a few microseconds."""

_STABLE_S = 10.0
"""A loop that has run for this long restarts with the shortest backoff again."""


def serve(settings: ManagerSettings) -> None:
    """Runs a manager until SIGTERM or SIGINT. Any number may run in parallel; killing any of them loses nothing."""

    async def main() -> None:
        manager = Manager(settings)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, manager.stop)
        await manager.run()

    asyncio.run(main())


class Manager:
    """One manager. It has no state of its own: it can read everything from the server again."""

    def __init__(self, settings: ManagerSettings) -> None:
        self._settings = settings
        self._connection = AsyncConnection.of(settings, name="lisa-manager")
        self._table = ShardTable(settings.prefix, fallback_s=settings.poll_s)
        self._reclaimer = Reclaimer(self._connection, self._table, settings)
        self._trimmer = Trimmer(self._connection, self._table, settings)
        self._sweeper = Sweeper(self._connection, self._table, settings)
        self._discoverer = Discoverer(self._connection, self._table)
        self._promoter = Promoter(self._connection, self._table, settings)
        self._adopter = Adopter(
            self._connection,
            self._table,
            self._discoverer,
            unknown=self._promoter.unknown_shards,
            discover=self._discover,
        )
        self._drainer = Drainer(self._connection, self._discoverer)
        self._doorkeeper = Doorkeeper(self._connection, self._discoverer)
        self._loader = Loader(self._connection)
        self._problems = ProblemLog(logger)
        self._stopping = asyncio.Event()
        self._turns: set[asyncio.Task[None]] = set()
        """Running turns of jobs."""

    def stop(self) -> None:
        """Stops the manager. Call it in the manager's event loop."""
        self._stopping.set()

    async def run(self) -> None:
        """Serves all topics until `stop` is called. Raises ServerError only at start."""
        async with self._connection:
            await self._check_server()
            scheduler = self._schedule()
            loops = [
                asyncio.create_task(self._keep_running(name, loop), name=name)
                for name, loop in {
                    "promote": self._promoter.run,
                    "listen": self._promoter.listen,
                    "adopt": self._adopter.run,
                }.items()
            ]
            try:
                await self._stopping.wait()
            finally:
                scheduler.pause()
                # Let turns that are about to start do so: a cancellation before the start would be logged as an error.
                await asyncio.sleep(0)
                scheduler.shutdown(wait=False)
                # The scheduler cancels turns without waiting for them, and they may still use the connection.
                await cancel_all(*loops, *self._turns)
        logger.info("manager stopped")

    async def _keep_running(self, name: str, loop: Callable[[], Awaitable[None]]) -> None:
        """Runs a loop, and restarts it after an error, so that no error of one loop ends the others."""
        failures = 0
        while True:
            started = time.monotonic()
            try:
                await loop()
            except Exception as error:  # noqa: BLE001 - no error may stop the other jobs
                failures = 1 if time.monotonic() - started > _STABLE_S else failures + 1
                self._problems.report(name, error)
                await asyncio.sleep(RECONNECT.compute(failures))

    async def _check_server(self) -> None:
        for finding in (await examine(self._connection)).findings:
            logger.warning("%s", finding)
        try:
            await self._loader.turn()
        except LisaError as error:
            self._problems.report("scripts", error)
        await self._discover()
        logger.info("manager serves %d shards", len(self._table.shards))

    def _schedule(self) -> AsyncIOScheduler:
        scheduler = AsyncIOScheduler(job_defaults={"coalesce": True, "misfire_grace_time": None})
        housekeeping_s = self._settings.housekeeping_s
        jobs: list[tuple[str, float, int, Callable[[], Awaitable[None]]]] = [
            ("reclaim", housekeeping_s, 1, self._reclaimer.turn),
            ("trim", housekeeping_s, _TURNS, self._trimmer.turn),
            ("sweep", housekeeping_s, _TURNS, self._sweeper.turn),
            ("discover", self._settings.discover_s, 1, self._discover),
            ("drain", self._settings.discover_s, 1, self._drainer.turn),
            ("limits", self._settings.discover_s, 1, self._doorkeeper.turn),
            ("scripts", _SCRIPTS_S, 1, self._loader.turn),
            ("gauges", _GAUGES_S, 1, self._gauges),
        ]
        for name, seconds, turns, turn in jobs:
            scheduler.add_job(self._guarded, "interval", (name, turn), seconds=seconds, id=name, max_instances=turns)
        scheduler.start()
        return scheduler

    async def _guarded(self, name: str, turn: Callable[[], Awaitable[None]]) -> None:
        if task := asyncio.current_task():
            self._turns.add(task)
            task.add_done_callback(self._turns.discard)
        try:
            await turn()
        except asyncio.CancelledError:
            # The scheduler cancels running turns when it shuts down, and would log this as an error.
            if not self._stopping.is_set():
                raise
        except Exception as error:  # noqa: BLE001 - no error may stop the other jobs or the next turn
            self._problems.report(name, error)
        else:
            self._problems.resolve(name)

    async def _discover(self) -> None:
        await self._discoverer.turn()
        self._promoter.wake()

    async def _gauges(self) -> None:
        pending = sum(sum(shard.pending.values()) for shard in self._table.shards.values())
        logger.info(
            "serving %d shards, %d deliveries pending; since start: %d promoted, %d reclaimed, %d expired, %d trimmed",
            *(len(self._table.shards), pending, self._promoter.promoted),
            *(self._reclaimer.reclaimed, self._sweeper.expired, self._trimmer.trimmed),
        )
