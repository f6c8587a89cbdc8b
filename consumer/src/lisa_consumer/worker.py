"""The worker: reads topics, runs handlers, settles deliveries, and drains when it stops."""

import asyncio
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NoReturn, TypeVar

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.errors import InvalidInput
from lisa_common.protocol.marking import MARKING
from lisa_common.validation import Duration, check_int, check_name, duration_ms
from lisa_consumer.core import Core
from lisa_consumer.fetcher import Fetcher
from lisa_consumer.handler import Handler, Route
from lisa_consumer.leases import Leases
from lisa_consumer.runner import HANDLER, Runner
from lisa_consumer.settings import ConsumerSettings

__all__ = ["Worker"]

logger = logging.getLogger(__name__)

H = TypeVar("H", bound=Handler)


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
    logger.error("abandoned handlers that still ran after the drain; their messages will be reclaimed")
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
    run in threads. At most `concurrency` handlers run at once; each topic can always run one. Leases are renewed,
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
        self._drain_until = 0.0
        self._is_paused = False
        self._running: tuple[asyncio.AbstractEventLoop, Runner] | None = None

    @property
    def name(self) -> str:
        """The name of this worker; the group knows it with a "~" at its end, as the worker marks what begins."""
        return self._core.name.removesuffix(MARKING)

    def on(self, *topics: str, concurrency: int | None = None, timeout: Duration | None = None) -> Callable[[H], H]:
        """Registers a handler for topics.

        At most `concurrency` messages of each topic are handled at once. After `timeout`, in seconds or as a timedelta,
        a coroutine is cancelled and its message nacked, and the lease of a plain function is no longer renewed. Raises
        InvalidInput for values out of range, and for a topic that has a handler already.
        """
        bound = self.settings.concurrency
        if concurrency is not None:
            bound = check_int("concurrency", concurrency, 1, bound)
        timeout_s = None if timeout is None else duration_ms("timeout", timeout, low_ms=1) / 1000
        if not topics:
            raise InvalidInput("topics", topics, "at least one name")

        def register(handler: H) -> H:
            for topic in topics:
                if check_name("topic", topic) in self._routes:
                    raise InvalidInput("topic", topic, "one that has no handler yet")
                self._routes[topic] = Route(topic, handler, bound, timeout_s)
            return handler

        return register

    def run(self) -> None:
        """Works until SIGTERM or SIGINT, then drains. Call it in the main thread.

        Ends the process with exit code 1 if a handler still runs after the drain: a plain function, as no thread can be
        stopped, or a coroutine that ignores its cancellation.
        """

        async def main() -> None:
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self.stop)
            await self.serve()
            if _tasks_left():
                _abandon_handlers()

        asyncio.run(main())
        if _threads_left(self._drain_until):
            _abandon_handlers()

    def stop(self) -> None:
        """Makes the worker drain and end. Call it in the worker's event loop."""
        self._drain_until = time.monotonic() + self.settings.drain_s
        self._stopping.set()

    def pause(self) -> None:
        """Makes this worker begin nothing more until `resume`. It may be called in any thread, and before `run`.

        Running handlers go on, and their leases are renewed. What the worker holds and has not begun is given back to
        the other workers, without an attempt spent. A policy with `paused` stops a topic for all workers.
        """
        self._pause(paused=True)

    def resume(self) -> None:
        """Ends a pause. It may be called in any thread."""
        self._pause(paused=False)

    @property
    def is_paused(self) -> bool:
        """Whether the worker is paused."""
        return self._is_paused

    def _pause(self, *, paused: bool) -> None:
        self._is_paused = paused
        if self._running:
            loop, runner = self._running
            # A worker that has just ended needs no pause.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(runner.pause if paused else runner.resume)

    async def serve(self) -> None:
        """Works until `stop` is called, then drains. Raises InvalidInput if no topic has a handler."""
        if not self._routes:
            raise InvalidInput("topics", (), "at least one, each with a handler")
        threads = ThreadPoolExecutor(self.settings.concurrency, thread_name_prefix=HANDLER)
        connecting = AsyncConnection.of(
            self.settings, name="lisa-worker", url=self.url, blocking_s=self.settings.block_s
        )
        # Separate from reads, as renewals must not wait for a missing answer as long as reads may.
        renewing = AsyncConnection.of(self.settings, name="lisa-worker", url=self.url)
        async with connecting as connection, renewing:
            leases = Leases(renewing, self._core)
            fetcher = Fetcher(
                *(connection, self._core, leases, self._routes), settings=self.settings, stopping=self._stopping
            )
            runner = Runner(
                *(connection, self._core, self._routes, fetcher, leases),
                threads=threads,
                settings=self.settings,
                stopping=self._stopping,
                renewing=renewing,
            )
            logger.info("worker %s of group %s reads %s", self.name, self._core.group, ", ".join(self._routes))
            self._running = asyncio.get_running_loop(), runner
            if self._is_paused:
                runner.pause()
            try:
                await runner.run()
            finally:
                self._running = None
        threads.shutdown(wait=False, cancel_futures=True)
        logger.info("worker %s has ended", self.name)
