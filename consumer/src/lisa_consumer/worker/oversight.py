"""What a worker tells the server of itself: its group that it lives, and operators what it does.

It does what operators want: aborts, a pause, a drain.
"""

import asyncio
import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

from lisa_common import __version__
from lisa_common.client.async_connection import AsyncConnection
from lisa_common.client.async_tasks import beside
from lisa_common.errors import LisaError
from lisa_common.logs import event
from lisa_common.model.needs import Optional
from lisa_common.model.worker_state import MOST_HANDLERS, MOST_TOPICS, RunningHandler, WorkerState, WorkerStatus
from lisa_common.protocol import consuming, groups, workers
from lisa_common.protocol.call import error_in
from lisa_common.protocol.consuming import server_time
from lisa_consumer.delivery.core import Core
from lisa_consumer.settings import ConsumerSettings
from lisa_consumer.worker.held import HeldDelivery
from lisa_consumer.worker.life import Life
from lisa_consumer.worker.pausable import Pausable

__all__ = ["Oversight", "presence_shown"]

logger = logging.getLogger(__name__)

_BEAT_S = 5.0
"""How often a worker says that it lives. Managers remove consumers that were idle for longer than 10 s."""

_PAUSE_S = 1.0
"""How often it asks, and how long a handler has run when it is named."""

_END_S = 1.0
"""How long an ending worker may take to deregister. Managers remove workers that did not."""


@asynccontextmanager
async def presence_shown(connection: AsyncConnection, core: Core) -> AsyncIterator[None]:
    """Shows that a worker is alive while the block runs. Then removes it from its group, unless it raised.

    A worker registers when it joins the group, whose consumers are the live ones. From then on this shows that it is
    alive, even if it reads nothing because no message is ready or all of its slots are taken.
    """
    async with beside(_keep_showing(connection, core)):
        yield
    await _end(connection, core)


async def _keep_showing(connection: AsyncConnection, core: Core) -> None:
    while True:
        await asyncio.sleep(_BEAT_S)
        if not core.joined:
            continue
        try:
            failure = await connection.run(groups.show_alive([*core.joined], core.group, core.name))
        except LisaError as error:
            failure = error
        # The reader reports what is wrong with the server, and joins dropped groups again.
        if failure:
            _log("cannot show that the worker is alive: %s", core, failure)


async def _end(connection: AsyncConnection, core: Core) -> None:
    """Removes the worker from its group, except from shards where it still holds something."""
    calls = [consuming.deregister(keys, core.group, core.name) for keys in core.joined]
    try:
        async with asyncio.timeout(_END_S):
            failure = error_in(await connection.execute_each(calls)) if calls else None
    except TimeoutError:
        failure = LisaError(f"no reply within {_END_S:g} s")
    except LisaError as error:
        failure = error
    if failure:
        _log("cannot deregister: %s", core, failure)


def _log(text: str, core: Core, error: LisaError) -> None:
    logger.debug(text, error, extra=event("presence_failed", group=core.group, error=str(error)))


class Oversight:
    """Asks the server once a second what operators want, and tells what the worker does when that changes."""

    def __init__(
        self, connection: AsyncConnection, core: Core, life: Life, worker: Pausable, settings: ConsumerSettings
    ) -> None:
        self._connection, self._core, self._life, self._worker = connection, core, life, worker
        self._settings, self._prefix = settings, settings.prefix
        self._began_ms = 0
        self._status, self._status_since = WorkerStatus.RUNNING, time.monotonic()
        self._told: tuple[object, ...] = ()
        self._told_at = 0.0

    @asynccontextmanager
    async def shown(self) -> AsyncIterator[None]:
        """Does so while the block runs. Then removes the worker from the list, unless the block raised.

        Before the block it asks once: a worker that an operator has paused begins nothing.
        """
        await self._try(self._report())
        async with beside(self._run()):
            yield
        if self._told:
            await self._try(self._connection.call(workers.leave(self._prefix, self._core.group, self._core.shown_name)))

    async def _run(self) -> None:
        turn = time.monotonic()
        while True:
            # Turns do not drift by what they take: what an operator asks is seen within a second.
            turn = max(turn + _PAUSE_S, time.monotonic())
            await asyncio.sleep(turn - time.monotonic())
            await self._try(self._life.look_for_aborts())
            await self._try(self._report())

    async def _try(self, asking: Awaitable[Any]) -> None:
        """Waits for an answer for a second. An outage is the reader's to report."""
        try:
            async with asyncio.timeout(_PAUSE_S):
                await asking
        except (LisaError, TimeoutError) as error:
            logger.debug("no news of operators: %s", error, extra=event("oversight_failed", error=str(error)))

    async def _report(self) -> None:
        """Does what an operator wants of the worker, and says what it does."""
        if Optional.WORKERS in self._connection.refusals:
            return
        if not self._began_ms:
            self._began_ms = await self._connection.call(server_time())
        wish = workers.read_wish(self._prefix, self._core.group, self._core.shown_name, self._began_ms)
        self._worker.obey(await self._connection.call(wish))
        stall, now = self._life.find_stall(), time.monotonic()
        status = self._find_status(stall)
        if status is not self._status:
            self._status, self._status_since = status, now
        running = sorted((h for h in self._life.leases.held if h.is_running), key=lambda held: held.began_at)
        long = [held for held in running if now - held.began_at > _PAUSE_S][:MOST_HANDLERS]
        news = (status, tuple(self._life.routes), *(held.place for held in long))
        if news == self._told and now - self._told_at < _BEAT_S:
            return
        await self._connection.call(workers.register(self._prefix, await self._state(stall, len(running), long)))
        self._told, self._told_at = news, now

    def _find_status(self, stall: str) -> WorkerStatus:
        if self._life.is_stopping:
            return WorkerStatus.DRAINING
        if self._worker.is_paused:
            return WorkerStatus.PAUSED
        return WorkerStatus.STUCK if stall else WorkerStatus.RUNNING

    async def _state(self, stall: str, running: int, long: list[HeldDelivery]) -> WorkerState:
        now_ms: int = await self._connection.call(server_time())
        ahead_ms = now_ms - time.monotonic() * 1000
        return WorkerState(
            group=self._core.group,
            name=self._core.shown_name,
            has_chosen_name=self._core.has_chosen_name,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=__version__,
            release=self._settings.release,
            topics=tuple(sorted(self._life.routes)[:MOST_TOPICS]),
            concurrency=self._settings.concurrency,
            status=self._status,
            status_since_ms=max(0, round(ahead_ms + self._status_since * 1000)),
            problem=stall,
            began_ms=self._began_ms,
            seen_ms=now_ms,
            held=len(self._life.leases.held),
            running=running,
            handlers=tuple(
                RunningHandler(
                    topic=held.delivery.topic,
                    id=held.delivery.id,
                    since_ms=max(0, round(ahead_ms + held.began_at * 1000)),
                )
                for held in long
            ),
        )
