"""The worker: reads topics, runs handlers, settles deliveries, and drains when it stops."""

import asyncio
import logging
import multiprocessing
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Literal, NoReturn, Protocol, TypedDict, TypeVar, Unpack, overload

from lisa_common.bodies import Codec, check_codec
from lisa_common.client.async_connection import AsyncConnection
from lisa_common.client.async_tasks import beside
from lisa_common.client.per_loop import is_loop_running
from lisa_common.client.user_check import check_user
from lisa_common.errors import InvalidInput, LisaError
from lisa_common.logs import event
from lisa_common.model.delivery import Delivery
from lisa_common.model.keys import ShardKeys
from lisa_common.model.rights import RoleName
from lisa_common.observing.health import Health
from lisa_common.observing.manager_watch import ManagerWatch
from lisa_common.protocol.managers import find_absence
from lisa_common.signals import run_signalled
from lisa_common.validation import Duration
from lisa_consumer.delivery.core import Core
from lisa_consumer.handling.handler import BatchHandler, Handler, Route
from lisa_consumer.handling.hooks import Hook, check_hook, surrounded
from lisa_consumer.handling.middleware import Middleware
from lisa_consumer.handling.processes import Processes
from lisa_consumer.handling.retries import ErrorClasses, Exponential, Fixed, Retries
from lisa_consumer.handling.routing import PatternRoute, Routing
from lisa_consumer.settings import ConsumerSettings, settings_of
from lisa_consumer.worker.discovery import Discovery
from lisa_consumer.worker.life import Life
from lisa_consumer.worker.oversight import Oversight, presence_shown
from lisa_consumer.worker.pausable import Pausable
from lisa_consumer.worker.schedules import DeclaresSchedules
from lisa_consumer.worker.threads import HandlerThreads, abandon_handlers, tasks_left, threads_left

__all__ = ["Worker"]

logger = logging.getLogger(__name__)

H = TypeVar("H", bound=Handler)
B = TypeVar("B", bound=BatchHandler)
M = TypeVar("M", bound=Middleware)
K = TypeVar("K", bound=Hook)
T = TypeVar("T")
R = TypeVar("R")
D = TypeVar("D")

_INTERRUPTED_S = 3.0
"""How long a worker that was interrupted twice may take to cancel its handlers and to settle; or to give them back."""


class HandlerOptions(TypedDict, total=False):
    """The options of `Worker.on` that say nothing of the handler's argument."""

    concurrency: int | None
    timeout: Duration | None
    run_in: Literal["process"] | None
    max_retries: int | None
    backoff: Exponential | Fixed | None
    retry_on: ErrorClasses | None
    reject_on: ErrorClasses | None


class _Registers(Protocol[D]):
    """A decorator of handlers that take deliveries of one type, so that type checkers compare it with `body`."""

    def __call__(self, handler: Callable[[D], R], /) -> Callable[[D], R]: ...


class Worker(DeclaresSchedules, Pausable):
    """Handles the messages of topics, as one consumer of a group.

        worker = Worker(group="billing", concurrency=32)

        @worker.on("orders")
        async def close_unpaid(delivery): ...

        worker.run()

    A message is acked when its handler returns, and nacked when it raises: the topic's policy then decides on the
    retry, unless the handler raised `Retry` or `Reject`. Handlers are coroutine functions, or plain functions, which
    run in threads. At most `concurrency` handlers run at once, by default 32, or one for each topic if those are more;
    each topic can always run one. Leases are renewed, however long a handler runs.

    On SIGTERM or SIGINT the worker stops reading, handles what it holds if that is quick, and releases the rest. It
    waits up to `settings.drain_s` seconds for running handlers, and settles what they handled. Then it cancels them and
    gives their messages back. What is given back spends no attempt. The worker survives outages of the server.
    """

    def __init__(
        self,
        group: str,
        *,
        url: str | None = None,
        concurrency: int | None = None,
        prefetch: int | None = None,
        name: str | None = None,
        codec: Codec | None = None,
        middleware: Sequence[Middleware] = (),
        settings: ConsumerSettings | None = None,
    ) -> None:
        super().__init__()
        self.settings = settings_of(settings, url=url, concurrency=concurrency, prefetch=prefetch)
        self.url = url or self.settings.redis_url.get_secret_value()
        self._core = Core(self.settings.prefix, group, name, codec=check_codec(codec))
        self._routing = Routing(codec, middleware)
        self._on_start: list[Hook] = []
        self._on_stop: list[Hook] = []
        self._stopping = asyncio.Event()
        self._is_serving = False
        self._drain_until = 0.0
        self._life: Life | None = None
        self.health = Health()
        """Whether the event loop runs, and this worker reads and settles; `lisa-consumer run --metrics` serves it."""

    @property
    def group(self) -> str:
        """The group of this worker."""
        return self._core.group

    @property
    def topics(self) -> list[str]:
        """The topics that have a handler by their names; patterns find others."""
        return self._routing.topics

    def override(self, settings: ConsumerSettings, names: Collection[str]) -> None:
        """Replaces these settings of the worker's code before it serves, as options of a command line do."""
        self.settings = self.settings.model_copy(update={name: getattr(settings, name) for name in names})
        if "redis_url" in names:
            self.url = settings.redis_url.get_secret_value()
        if "prefix" in names:
            name = self.name if self._core.has_chosen_name else None
            self._core = Core(settings.prefix, self._core.group, name, codec=self._core.codec)

    @property
    def name(self) -> str:
        """The name of this worker. The name of its consumer in the group begins with it."""
        return self._core.shown_name

    @overload
    def on(self, *topics: str, body: type[T], **options: Unpack[HandlerOptions]) -> _Registers[Delivery[T]]: ...
    @overload
    def on(self, *topics: str, body: Any = None, **options: Unpack[HandlerOptions]) -> Callable[[H], H]: ...
    @overload
    def on(
        self,
        *topics: str,
        body: type[T],
        batch: int,
        within: Duration | None = None,
        **options: Unpack[HandlerOptions],
    ) -> _Registers[list[Delivery[T]]]: ...
    @overload
    def on(
        self,
        *topics: str,
        body: Any = None,
        batch: int,
        within: Duration | None = None,
        **options: Unpack[HandlerOptions],
    ) -> Callable[[B], B]: ...
    def on(
        self,
        *topics: str,
        body: Any = None,
        batch: int | None = None,
        within: Duration | None = None,
        concurrency: int | None = None,
        timeout: Duration | None = None,
        run_in: Literal["process"] | None = None,
        max_retries: int | None = None,
        backoff: Exponential | Fixed | None = None,
        retry_on: ErrorClasses | None = None,
        reject_on: ErrorClasses | None = None,
    ) -> Callable[[Any], Any]:
        """Registers a handler for topics; "*" in a topic stands for any text, and finds topics while the worker works.

        At most `concurrency` messages of each topic are handled at once, and no more than the worker handles at all.
        After `timeout`, in seconds or as a timedelta, a coroutine is cancelled and its message nacked, and the lease of
        a plain function is no longer renewed. With `run_in="process"`, a plain function runs in a process of a pool,
        which is killed after `timeout`, at the end of a drain, and by an abort; then `concurrency` is the number of
        processors by default. The process gets deliveries by pickle, and imports the function by its name.

        With `body`, a type, the handler finds the decoded body in `delivery.value`; a message whose body does not fit
        becomes garbage. With `batch`, the handler gets a list of up to so many deliveries of one topic, from 1 to
        1,000: those that came `within` so many seconds (0.2) of the first. All are acked when it returns, all nacked
        when it raises, unless that is `BatchFailed`; then `concurrency` counts its calls, 1 by default.

        `max_retries` and `backoff`, an `Exponential` or a `Fixed`, hold in place of the topic's policy; limits of a
        message hold before both. An error of a class in `reject_on` makes its message garbage at once. With `retry_on`,
        so does any error but those. A class that is named in one of them wins over its base class in the other.

        Raises InvalidInput for values out of range, a topic that has a handler, and a handler that takes no delivery.
        """
        return self._routing.registration(
            *(topics, body, batch, within),
            concurrency=concurrency,
            timeout=timeout,
            run_in=run_in,
            retries=Retries.of(max_retries=max_retries, backoff=backoff, retry_on=retry_on, reject_on=reject_on),
        )

    def use(self, middleware: M) -> M:
        """Adds middleware around every handler, within what was added before; also as a decorator.

        `async def middleware(delivery, call_next)` awaits `call_next(delivery)`, which raises what the handler raises.
        A plain function calls it, in the thread of a plain handler. Raises InvalidInput.
        """
        self._routing.use(middleware)
        return middleware

    @contextmanager
    def using(self, middleware: Middleware) -> Iterator[None]:
        """Puts middleware around all other middleware until the block ends, in workers that begin to serve in it."""
        with self._routing.using(middleware):
            yield

    def on_start(self, hook: K) -> K:
        """Adds a function, a coroutine function or a plain one, to call without arguments before the first read."""
        self._on_start.append(check_hook("on_start", hook))
        return hook

    def on_stop(self, hook: K) -> K:
        """Adds a function to call after the drain, the last one first; also when a function of `on_start` raised."""
        self._on_stop.append(check_hook("on_stop", hook))
        return hook

    def run(self) -> None:
        """Works until SIGTERM or SIGINT, then drains; a SIGINT during the drain ends it. Call it in the main thread.

        Ends the process with exit code 1 if the drain is ended, or if a handler still runs after it: a plain function,
        as no thread can be stopped, or a coroutine that ignores its cancellation. Raises LisaError in a running event
        loop, and outside the main thread, which alone receives signals: use `await worker.serve()` there.
        """
        if is_loop_running() or threading.current_thread() is not threading.main_thread():
            raise LisaError(
                "Worker.run needs the main thread, and starts an event loop of its own; use `await worker.serve()`"
            )
        was_drained = run_signalled(self._serve_until_signalled())
        if threads_left(self._drain_until if was_drained else 0):
            asyncio.run(self._abandon_handlers())
        if not was_drained:
            sys.exit(1)

    async def _serve_until_signalled(self) -> bool:
        """Serves. Returns False if the drain was ended."""
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
            logger.warning(
                "worker %s ends its drain: it was interrupted again",
                self.name,
                extra=event("drain_interrupted", consumer=self.name),
            )
            serving.cancel()
            await asyncio.wait((serving,), timeout=_INTERRUPTED_S)
        if tasks_left() or not serving.done():
            await self._abandon_handlers()
        ending.cancel()
        if not serving.cancelled():
            serving.result()
        return was_drained

    async def _abandon_handlers(self) -> NoReturn:
        """Gives back what still runs, and ends the process, so that nothing is handled twice at once."""
        if self._life and (running := [held.delivery for held in self._life.leases.held if held.is_running]):
            with suppress(LisaError, TimeoutError):
                limit = asyncio.timeout(_INTERRUPTED_S)
                async with limit, AsyncConnection.of(self.settings, name="lisa-worker", url=self.url) as connection:
                    await connection.run(self._core.release(running), patience_s=1)
        abandon_handlers()

    def stop(self) -> None:
        """Makes the worker drain and end. Call it in the worker's event loop."""
        if not self._stopping.is_set():
            self._drain_until = time.monotonic() + self.settings.drain_s
            self._stopping.set()

    async def serve(self, *, burst: bool = False) -> None:
        """Works until `stop` is called, then drains; may be called again after that.

        With `burst`, ends by itself once nothing is ready. Raises InvalidInput if no topic has a handler, if the
        concurrency that was set is less than one for each, or for middleware that cannot surround a handler; and what a
        function of `on_start` or `on_stop` raises.
        """
        if self._is_serving:
            raise InvalidInput("worker", self.name, "a worker that is not serving")
        if self._stopping.is_set():
            logger.warning(
                "worker %s does not start: it was stopped before",
                self.name,
                extra=event("worker_stopped_before", consumer=self.name),
            )
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            # It would read messages, in place of handling that of its parent.
            raise LisaError('a module that runs a worker needs `if __name__ == "__main__":`, as processes import it')
        self._is_serving = True
        threads = HandlerThreads()
        processes = Processes(most_messages=self.settings.process_messages, most_bytes=self.settings.process_bytes)
        try:
            settings, routes, patterns = self._routing.prepared(self.settings, processes)
            async with surrounded(self._on_start, self._on_stop):
                await self._serve(settings, routes, patterns, threads, burst=burst)
        finally:
            # Else idle threads would count as handlers that still run.
            threads.shutdown(wait=False)
            processes.close()
            self._is_serving = False
            # A new one, as an event belongs to the loop that has waited for it.
            self._stopping = asyncio.Event()

    async def _serve(
        self,
        settings: ConsumerSettings,
        routes: dict[str, Route],
        patterns: list[PatternRoute],
        threads: HandlerThreads,
        *,
        burst: bool,
    ) -> None:
        self._core.app_release = settings.release
        connecting = AsyncConnection.of(settings, name="lisa-worker", url=self.url, blocking_s=settings.block_s)
        # Separate from reads, as renewals must not wait for a missing answer as long as reads may.
        renewing = AsyncConnection.of(settings, name="lisa-worker", url=self.url)

        async with connecting as connection, renewing:
            self._life = life = Life(
                *(connection, renewing, self._core, routes),
                threads=threads,
                settings=settings,
                stopping=self._stopping,
                health=self.health,
                burst=burst,
            )
            discovery = Discovery(renewing, settings.prefix, patterns, life)
            names = [*routes, *(each.pattern.text for each in patterns)]
            await check_user(renewing, RoleName.CONSUMER, ShardKeys(settings.prefix, names[0].replace("*", "")))
            logger.info(
                "worker %s of group %s reads %s",
                *(self.name, self._core.group, ", ".join(names)),
                extra=event("worker_started", consumer=self.name, group=self._core.group, topics=names),
            )
            watch = ManagerWatch(lambda: renewing.run(find_absence(settings.prefix)))
            self.health.remarks = [lambda: watch.absence]
            declaring, shown = self._declare_schedules(renewing, settings.prefix), presence_shown(renewing, self._core)
            async with beside(declaring), shown, beside(watch.run()), discovery.running(once=burst):
                with self._pausing(life):
                    async with Oversight(renewing, self._core, life, self, settings).shown():
                        await life.run()
        logger.info("worker %s has ended", self.name, extra=event("worker_ended", consumer=self.name, group=self.group))
