"""The worker: reads topics, runs handlers, settles deliveries, and drains when it stops."""

import asyncio
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import NoReturn, TypeVar

from lisa_common.client.async_connection import AsyncConnection, cancel_all
from lisa_common.errors import InvalidInput
from lisa_common.logs import event
from lisa_common.observing.health import Health
from lisa_common.protocol.marking import MARKING
from lisa_common.validation import Duration, check_int, check_name, duration_ms
from lisa_consumer.core import Core
from lisa_consumer.fetcher import Fetcher
from lisa_consumer.handler import Handler, Route
from lisa_consumer.leases import Leases
from lisa_consumer.presence import Presence
from lisa_consumer.runner import HANDLER, Runner
from lisa_consumer.settings import MAX_CONCURRENCY, ConsumerSettings

__all__ = ["Worker"]

logger = logging.getLogger(__name__)

H = TypeVar("H", bound=Handler)

_INTERRUPTED_S = 3.0
"""How long a worker that was interrupted twice may take to cancel its handlers and to settle."""


def _tasks_left() -> bool:
    return any(task.get_name() == HANDLER for task in asyncio.all_tasks())


def _threads_left(until: float) -> bool:
    threads = [thread for thread in threading.enumerate() if thread.name.startswith(HANDLER)]
    for thread in threads:
        # Idle threads end once they notice that their pool is shut down, which takes a moment on a busy machine.
        thread.join(max(0.2, until - time.monotonic()))
    return any(thread.is_alive() for thread in threads)


def _abandon_handlers() -> NoReturn:
    """Ends the process: nothing else stops a thread, or a coroutine that ignores its cancellation."""
    text = "abandoned handlers that still ran after the drain; their messages will be reclaimed"
    logger.error(text, extra=event("handlers_abandoned"))
    logging.shutdown()
    os._exit(1)


class Worker:
    """Handles the messages of topics, as one consumer of a group.

        worker = Worker(group="billing", concurrency=32)

        @worker.on("orders")
        async def close_unpaid(delivery): ...

        worker.run()

    A message is acked when its handler returns, and nacked when it raises: the topic's policy then decides on the
    retry, unless the handler raised `Retry` or `Reject`. Handlers are coroutine functions, or plain functions, which
    run in threads. At most `concurrency` handlers run at once, by default 32, or one for each topic if those are more;
    each topic can always run one. Leases are renewed,
    however long a handler runs.

    On SIGTERM or SIGINT the worker stops reading, handles what it holds if that is quick, and releases the rest, which
    costs no attempt. It waits up to `settings.drain_s` seconds for running handlers, and settles what they handled. It
    survives outages of the server.
    """

    def __init__(
        self,
        group: str,
        *,
        url: str | None = None,
        concurrency: int | None = None,
        prefetch: int | None = None,
        name: str | None = None,
        settings: ConsumerSettings | None = None,
    ) -> None:
        self.settings = settings or ConsumerSettings.load(redis_url=url, concurrency=concurrency, prefetch=prefetch)
        self.url = url or self.settings.redis_url.get_secret_value()
        self._core = Core(self.settings.prefix, group, name)
        self._core.enable_marks()
        self._routes: dict[str, Route] = {}
        self._stopping = asyncio.Event()
        self._is_serving = False
        self._drain_until = 0.0
        self.health = Health()
        """Whether this worker comes round, and reads and settles; `lisa-consumer run --metrics` serves it."""

    def override(self, settings: ConsumerSettings, names: Collection[str]) -> None:
        """Replaces these settings of the worker's code before it serves, as options of a command line do."""
        self.settings = self.settings.model_copy(update={name: getattr(settings, name) for name in names})
        if "redis_url" in names:
            self.url = settings.redis_url.get_secret_value()
        if "prefix" in names:
            self._core = Core(settings.prefix, self._core.group, self.name)
            self._core.enable_marks()

    @property
    def name(self) -> str:
        """The name of this worker; the group knows it with a "~" at its end, as the worker marks what begins."""
        return self._core.name.removesuffix(MARKING)

    def on(self, *topics: str, concurrency: int | None = None, timeout: Duration | None = None) -> Callable[[H], H]:
        """Registers a handler for topics.

        At most `concurrency` messages of each topic are handled at once, and no more than the worker handles at all.
        After `timeout`, in seconds or as a timedelta, a coroutine is cancelled and its message nacked, and the lease of
        a plain function is no longer renewed. Raises InvalidInput for values out of range, for a topic that has a
        handler already, and for a handler that cannot be called with a delivery.
        """
        bound = MAX_CONCURRENCY if concurrency is None else check_int("concurrency", concurrency, 1, MAX_CONCURRENCY)
        timeout_s = None if timeout is None else duration_ms("timeout", timeout, low_ms=1) / 1000
        if not topics:
            raise InvalidInput("topics", topics, "at least one name")
        for topic in topics:
            if callable(topic):
                raise InvalidInput("topic", topic, 'a name, as in @worker.on("orders")')
            check_name("topic", topic)

        def register(handler: H) -> H:
            for topic in topics:
                if topic in self._routes:
                    raise InvalidInput("topic", topic, "one that has no handler yet")
                self._routes[topic] = Route(topic, handler, bound, timeout_s)
            return handler

        return register

    def run(self) -> None:
        """Works until SIGTERM or SIGINT, then drains; a SIGINT during the drain ends it. Call it in the main thread.

        Ends the process with exit code 1 if the drain is ended, or if a handler still runs after it: a plain function,
        as no thread can be stopped, or a coroutine that ignores its cancellation.
        """
        was_drained = asyncio.run(self._serve_until_signalled())
        if _threads_left(self._drain_until if was_drained else 0):
            _abandon_handlers()
        if not was_drained:
            sys.exit(1)

    async def _serve_until_signalled(self) -> bool:
        """Serves. Result: False if the drain was ended."""
        interrupted = asyncio.Event()

        def interrupt() -> None:
            (interrupted.set if self._stopping.is_set() else self.stop)()

        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.stop)
        loop.add_signal_handler(signal.SIGINT, interrupt)
        self.health.notifies = True
        serving = asyncio.create_task(self.serve())
        ending = asyncio.create_task(interrupted.wait())
        await asyncio.wait((serving, ending), return_when=asyncio.FIRST_COMPLETED)
        was_drained = serving.done()
        if not was_drained:
            logger.warning("worker %s ends its drain, as it was interrupted again", self.name)
            serving.cancel()
            await asyncio.wait((serving,), timeout=_INTERRUPTED_S)
        if _tasks_left() or not serving.done():
            _abandon_handlers()
        ending.cancel()
        if not serving.cancelled():
            serving.result()
        return was_drained

    def stop(self) -> None:
        """Makes the worker drain and end. Call it in the worker's event loop."""
        if not self._stopping.is_set():
            self._drain_until = time.monotonic() + self.settings.drain_s
            self._stopping.set()

    async def serve(self) -> None:
        """Works until `stop` is called, then drains; may be called again after that.

        Raises InvalidInput if no topic has a handler, or if the concurrency that was set is less than one for each.
        """
        if self._is_serving:
            raise InvalidInput("worker", self.name, "one that does not serve yet")
        if self._stopping.is_set():
            logger.warning("worker %s does not begin, as it was stopped before", self.name)
        self._is_serving = True
        try:
            await self._serve(*self._bounded())
        finally:
            self._is_serving = False
            # A new one, as an event belongs to the loop that has waited for it.
            self._stopping = asyncio.Event()

    def _bounded(self) -> tuple[ConsumerSettings, dict[str, Route]]:
        """The settings and routes to serve with: each topic can run a handler, and none more than the worker."""
        if not self._routes:
            raise InvalidInput("topics", (), "at least one, each with a handler")
        settings = self.settings
        if "concurrency" not in settings.model_fields_set:
            # Nobody has set a limit, so it must not be less than one handler for each topic.
            settings = settings.model_copy(update={"concurrency": max(settings.concurrency, len(self._routes))})
        most = settings.concurrency
        return settings, {t: replace(r, concurrency=min(r.concurrency, most)) for t, r in self._routes.items()}

    async def _serve(self, settings: ConsumerSettings, routes: Mapping[str, Route]) -> None:
        threads = ThreadPoolExecutor(settings.concurrency, thread_name_prefix=HANDLER)
        connecting = AsyncConnection.of(settings, name="lisa-worker", url=self.url, blocking_s=settings.block_s)
        # Separate from reads, as renewals must not wait for a missing answer as long as reads may.
        renewing = AsyncConnection.of(settings, name="lisa-worker", url=self.url)
        async with connecting as connection, renewing:
            leases = Leases(renewing, self._core)
            fetcher = Fetcher(*(connection, self._core, leases, routes), settings=settings, stopping=self._stopping)
            runner = Runner(
                *(connection, self._core, routes, fetcher, leases),
                threads=threads,
                settings=settings,
                stopping=self._stopping,
                renewing=renewing,
                health=self.health,
            )
            logger.info(
                "worker %s of group %s reads %s",
                *(self.name, self._core.group, ", ".join(routes)),
                extra=event("worker_started", consumer=self.name, group=self._core.group, topics=list(routes)),
            )
            presence = Presence(renewing, self._core)
            showing = asyncio.create_task(presence.run())
            try:
                await runner.run()
            finally:
                await cancel_all(showing)
            await presence.end()
        threads.shutdown(wait=False, cancel_futures=True)
        ended = event("worker_ended", consumer=self.name, group=self._core.group)
        logger.info("worker %s has ended", self.name, extra=ended)
