"""The daemon: one connection, one board, the promoter in a loop of its own, all periodic work by APScheduler."""

import asyncio
import logging
import signal
import time
from collections.abc import Awaitable, Callable

from apscheduler.schedulers.asyncio import AsyncIOScheduler

from lisa_common.backoff import RECONNECT
from lisa_common.client.async_connection import AsyncConnection, cancel_all
from lisa_common.errors import LisaError
from lisa_manager.board import Board
from lisa_manager.complaints import Complaints
from lisa_manager.jobs.adopter import Adopter
from lisa_manager.jobs.discoverer import Discoverer
from lisa_manager.jobs.drainer import Drainer
from lisa_manager.jobs.loader import Loader
from lisa_manager.jobs.promoter import Promoter
from lisa_manager.jobs.reclaimer import Reclaimer
from lisa_manager.jobs.sweeper import Sweeper
from lisa_manager.jobs.trimmer import Trimmer
from lisa_manager.server_checks import examine
from lisa_manager.settings import ManagerSettings

__all__ = ["Manager", "serve"]

logger = logging.getLogger(__name__)

_GAUGES_S = 60

_TURNS = 1_000
"""Turns of a job at once, where one does not wait for a node at which an earlier one is at work: one for each node."""

_SCRIPTS_S = 1.0
"""Users who may not load scripts wait for so long after a flush; a look costs the server a few microseconds."""

_CALM_S = 10.0
"""A loop that has run for so long is no more in trouble than one that just began."""


def serve(settings: ManagerSettings) -> None:
    """Runs a manager until SIGTERM or SIGINT. Any number may run at once; killing any of them loses nothing."""

    async def main() -> None:
        manager = Manager(settings)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, manager.stop)
        await manager.run()

    asyncio.run(main())


class Manager:
    """One manager. It keeps nothing: all that it knows it has read from the server, and may read again."""

    def __init__(self, settings: ManagerSettings) -> None:
        self._settings = settings
        self._connection = AsyncConnection.of(settings, name="lisa-manager")
        self._board = Board(settings.prefix, fallback_s=settings.poll_s)
        self._reclaimer = Reclaimer(self._connection, self._board, settings)
        self._trimmer = Trimmer(self._connection, self._board, settings)
        self._sweeper = Sweeper(self._connection, self._board, settings)
        self._discoverer = Discoverer(self._connection, self._board)
        self._promoter = Promoter(self._connection, self._board, settings)
        self._adopter = Adopter(
            self._connection,
            self._board,
            self._discoverer,
            unknown=self._promoter.unknown_topics,
            discover=self._discover,
        )
        self._drainer = Drainer(self._connection, self._board, self._discoverer)
        self._loader = Loader(self._connection)
        self._complaints = Complaints(logger)
        self._stopping = asyncio.Event()
        self._turns: set[asyncio.Task[None]] = set()
        """Turns of jobs that are under way."""

    def stop(self) -> None:
        """Tells the manager to end. To be called in its event loop."""
        self._stopping.set()

    async def run(self) -> None:
        """Serves all topics until `stop` is called. Raises ServerError at start, and only then."""
        async with self._connection:
            await self._check_server()
            scheduler = self._schedule()
            loops = [
                asyncio.create_task(self._kept(name, loop), name=name)
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
                # A turn that is about to begin does so, as only one that has can say nothing of its cancellation.
                await asyncio.sleep(0)
                scheduler.shutdown(wait=False)
                # The scheduler cancels turns, but does not wait for them; one might still take up a connection.
                await cancel_all(*loops, *self._turns)
        logger.info("manager has ended")

    async def _kept(self, name: str, loop: Callable[[], Awaitable[None]]) -> None:
        """Runs a loop, and begins it again should it fail: no fault in one may end the others."""
        failures = 0
        while True:
            began = time.monotonic()
            try:
                await loop()
            except Exception as error:  # noqa: BLE001 - whatever it is, all other topics and jobs go on
                failures = 1 if time.monotonic() - began > _CALM_S else failures + 1
                self._complaints.about(name, error)
                await asyncio.sleep(RECONNECT.compute(failures))

    async def _check_server(self) -> None:
        for finding in (await examine(self._connection)).findings:
            logger.warning("%s", finding)
        try:
            await self._loader.turn()
        except LisaError as error:
            self._complaints.about("scripts", error)
        await self._discover()
        logger.info("manager serves %d topics", len(self._board.topics))

    def _schedule(self) -> AsyncIOScheduler:
        scheduler = AsyncIOScheduler(job_defaults={"coalesce": True, "misfire_grace_time": None})
        housekeeping_s = self._settings.housekeeping_s
        jobs: list[tuple[str, float, int, Callable[[], Awaitable[None]]]] = [
            ("reclaim", housekeeping_s, 1, self._reclaimer.turn),
            ("trim", housekeeping_s, _TURNS, self._trimmer.turn),
            ("sweep", housekeeping_s, _TURNS, self._sweeper.turn),
            ("discover", self._settings.discover_s, 1, self._discover),
            ("drain", self._settings.discover_s, 1, self._drainer.turn),
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
            # The scheduler, which would log it as a failure, cancels what runs when it is shut down.
            if not self._stopping.is_set():
                raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the other jobs go on, and this one has its next turn
            self._complaints.about(name, error)
        else:
            self._complaints.settled(name)

    async def _discover(self) -> None:
        await self._discoverer.turn()
        self._promoter.wake()

    async def _gauges(self) -> None:
        pending = sum(sum(watched.pending.values()) for watched in self._board.topics.values())
        logger.info(
            "%d topics, %d deliveries pending; since start: %d promoted, %d reclaimed, %d expired, %d entries trimmed",
            *(len(self._board.topics), pending, self._promoter.promoted),
            *(self._reclaimer.reclaimed, self._sweeper.expired, self._trimmer.trimmed),
        )
