"""The worker: reads topics, runs handlers, settles what they end, and drains when it is told to stop."""

import asyncio
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn, TypeVar

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.errors import InvalidInput
from lisa_common.protocol.marking import MARKING
from lisa_common.validation import Duration, check_int, check_name, duration_ms
from lisa_consumer.core import Core
from lisa_consumer.handler import Handler, Route
from lisa_consumer.settings import ConsumerSettings
from lisa_consumer.shift import HANDLER, Shift

__all__ = ["Worker"]

logger = logging.getLogger(__name__)

H = TypeVar("H", bound=Handler)


def _tasks_left() -> bool:
    return any(task.get_name() == HANDLER for task in asyncio.all_tasks())


def _threads_left(until: float) -> bool:
    threads = [thread for thread in threading.enumerate() if thread.name.startswith(HANDLER)]
    for thread in threads:
        # Idle ones end as soon as they notice that their pool has been shut down; a busy machine lets them wait.
        thread.join(max(0.2, until - time.monotonic()))
    return any(thread.is_alive() for thread in threads)


def _abandon_handlers() -> NoReturn:
    """Ends the process, as nothing less ends what does not heed its cancellation, nor a thread."""
    logger.error("handlers still run after the drain; their messages will be reclaimed")
    logging.shutdown()
    os._exit(1)


class Worker:
    """Handles the messages of topics, as one consumer of a group.

        worker = Worker(group="billing", concurrency=32)

        @worker.on("orders")
        async def close_unpaid(delivery): ...

        worker.run()

    A handler that returns acks; one that raises gives the message up, to be retried by the topic's policy; `Retry` and
    `Reject` say more. Handlers are coroutines, or plain functions, which run in threads. `concurrency` bounds what
    runs at once; each topic always has a slot. Leases of what is in hand are renewed, however long a handler runs.

    On SIGTERM or SIGINT the worker reads no more, handles what it holds if that is quick, gives back the rest without
    spending an attempt, lets running handlers end for `settings.drain_s` seconds, and settles. It survives the absence
    of the server.
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
        self._core.mark_beginnings()
        self._router: dict[str, Route] = {}
        self._stopping = asyncio.Event()
        self._drain_until = 0.0

    @property
    def name(self) -> str:
        """The name of this worker; the group knows it with a "~" at its end, as it marks what begins."""
        return self._core.name.removesuffix(MARKING)

    def on(self, *topics: str, concurrency: int | None = None, timeout: Duration | None = None) -> Callable[[H], H]:
        """Registers a handler for topics.

        At most `concurrency` messages of each topic are handled at once. A coroutine that runs for longer than
        `timeout` is cancelled, and its message given up; the lease of a plain function is not renewed after it.
        """
        bound = self.settings.concurrency
        if concurrency is not None:
            bound = check_int("concurrency", concurrency, 1, bound)
        timeout_s = None if timeout is None else duration_ms("timeout", timeout, low_ms=1) / 1000
        if not topics:
            raise InvalidInput("topics", topics, "at least one is")

        def register(handler: H) -> H:
            for topic in topics:
                if check_name("topic", topic) in self._router:
                    raise InvalidInput("topic", topic, "it has a handler already; one for each topic is")
                self._router[topic] = Route(topic, handler, bound, timeout_s)
            return handler

        return register

    def run(self) -> None:
        """Works until SIGTERM or SIGINT, then drains; for the main thread.

        Ends the process with exit code 1 when a handler still runs after the drain: a plain function, whose thread
        cannot be ended, or a coroutine that does not heed its cancellation.
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
        """Tells the worker to drain and end. To be called in its event loop."""
        self._drain_until = time.monotonic() + self.settings.drain_s
        self._stopping.set()

    async def serve(self) -> None:
        """Works until `stop` is called, then drains."""
        if not self._router:
            raise InvalidInput("topics", (), "a worker needs a handler; at least one is")
        threads = ThreadPoolExecutor(self.settings.concurrency, thread_name_prefix=HANDLER)
        connecting = AsyncConnection.of(
            self.settings, name="lisa-worker", url=self.url, blocking_s=self.settings.block_s
        )
        # Apart from reads, as it must not wait as long as they may for an answer that does not come.
        renewing = AsyncConnection.of(self.settings, name="lisa-worker", url=self.url)
        async with connecting as connection, renewing:
            shift = Shift(
                connection,
                self._core,
                self._router,
                threads=threads,
                settings=self.settings,
                stopping=self._stopping,
                renewing=renewing,
            )
            logger.info("worker %s of group %s reads %s", self.name, self._core.group, ", ".join(self._router))
            await shift.work()
        threads.shutdown(wait=False, cancel_futures=True)
        logger.info("worker %s has ended", self.name)
