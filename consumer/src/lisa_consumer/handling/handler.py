"""Handlers that users write, and how they are called."""

import asyncio
import inspect
import pickle
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from typing import Any

from lisa_common.bodies import BodyType, InvalidBody
from lisa_common.errors import InvalidInput
from lisa_common.model.delivery import Delivery
from lisa_consumer.handling.batches import BatchSize
from lisa_consumer.handling.middleware import (
    Middleware,
    check_has_run,
    is_async,
    is_function,
    is_generator,
    run_in_thread,
    takes,
    wrap,
    wrap_async,
)
from lisa_consumer.handling.processes import Processes, check_importable
from lisa_consumer.handling.retries import NO_RETRIES, Retries
from lisa_consumer.handling.wishes import Reject

__all__ = ["BatchHandler", "Handler", "Route"]

Handler = Callable[[Delivery], object]

BatchHandler = Callable[[list[Delivery]], object]


@dataclass(frozen=True, slots=True)
class Route:
    """A topic, its handler, and how many calls of it may run at once.

    Raises InvalidInput for a handler whose call would handle nothing.
    """

    topic: str
    handler: Callable[[Any], object]
    concurrency: int
    timeout_s: float | None = None
    body: BodyType[Any] | None = None
    batch: BatchSize | None = None
    retries: Retries = NO_RETRIES
    runs_in_process: bool = False
    middleware: tuple[Middleware, ...] = ()
    """What is still put around each call. In a prepared route, plain functions are a part of `handler` already."""
    processes: Processes | None = None
    """Where a prepared route runs in a process: the worker's processes."""
    _is_async: bool = field(init=False)
    coroutine: Callable[[Delivery], Awaitable[object]] | None = field(init=False)
    """The handler, if a call takes no more than to await it."""

    def __post_init__(self) -> None:
        if not is_function(self.handler):
            raise InvalidInput("handler", self.handler, "a coroutine function or a plain function")
        if is_generator(self.handler):
            expected = "a function without `yield`, of which a call would run nothing"
            raise InvalidInput("handler", self.handler, expected)
        if not takes(self.handler, 1):
            raise InvalidInput("handler", self.handler, "a function that can be called with one argument, the delivery")
        if self.runs_in_process:
            check_importable(self.handler)
        object.__setattr__(self, "_is_async", is_async(self.handler))
        is_plain = self._is_async and not (self.middleware or self.timeout_s or self.body)
        object.__setattr__(self, "coroutine", self.handler if is_plain else None)

    def prepared(self, *, most: int, middleware: Sequence[Middleware], processes: Processes) -> "Route":
        """The route as a worker serves it: with its middleware, and at most so many calls at once.

        Raises InvalidInput for middleware that cannot surround the handler.
        """
        handler, concurrency = self.handler, min(self.concurrency, most)
        if self.runs_in_process:
            # When it was registered, its module did not have it yet.
            try:
                pickle.dumps(handler)
            except (AttributeError, pickle.PicklingError):
                raise InvalidInput("handler", handler, "what its module has by its name, for a process") from None
            return replace(self, concurrency=concurrency, middleware=tuple(middleware), processes=processes)
        if not self._is_async:
            handler = wrap(handler, middleware)
        elif plain := next((each for each in middleware if not is_async(each)), None):
            expected = f"a coroutine function, like the handler of topic {self.topic!r}"
            raise InvalidInput("middleware", plain, expected)
        around = tuple(filter(is_async, middleware))
        return replace(self, handler=handler, concurrency=concurrency, middleware=around)

    @property
    def leased_s(self) -> float | None:
        """How long the lease is renewed while the handler runs; None without end, as also where it can be killed."""
        return None if self.runs_in_process else self.timeout_s

    @property
    def slots(self) -> int:
        """How many messages may be handled at once."""
        return self.concurrency * (self.batch.most if self.batch else 1)

    def decoded(self, delivery: Delivery) -> Delivery:
        """The delivery as the handler takes it. Raises Reject for a body that does not fit."""
        if self.body is None:
            return delivery
        try:
            return delivery._replace(value=self.body.decode(delivery.body))
        except InvalidBody as error:
            raise Reject(str(error)) from None

    async def call(self, given: Delivery | list[Delivery], threads: Executor) -> None:
        """Runs the handler until it ends: a coroutine in the event loop, a plain function in a thread.

        `given` is decoded. Raises the handler's errors, and TimeoutError when a coroutine, or a process, takes longer
        than the route allows. A cancelled call kills its process, but waits for its thread, which cannot be stopped.
        """
        if self.middleware:
            result: object = wrap_async(lambda passed: self._handle(passed, threads), self.middleware)(given)
        elif self._is_async:
            result = self.handler(given)
        else:
            result = await self._run_plain(given, threads)
        if inspect.isawaitable(result):
            result = await (result if self.leased_s is None else _within(self.leased_s, result))
        check_has_run(result, awaited=True)

    async def _handle(self, given: Delivery | list[Delivery], threads: Executor) -> object:
        """The innermost call, within middleware. Returns the result of the handler."""
        result = self.handler(given) if self._is_async else await self._run_plain(given, threads)
        if inspect.isawaitable(result):
            result = await result
        return check_has_run(result, awaited=True)

    async def _run_plain(self, given: Delivery | list[Delivery], threads: Executor) -> object:
        if self.processes is None:
            return await run_in_thread(self.handler, given, threads)
        call = self.processes.call(self.handler, self.timeout_s)
        return await run_in_thread(wrap(call.run, self.middleware), given, threads, call.kill)


async def _within(timeout_s: float, result: Awaitable[object]) -> object:
    try:
        async with asyncio.timeout(timeout_s) as limit:
            return await result
    except TimeoutError:
        if limit.expired():
            raise TimeoutError(f"the handler took longer than {timeout_s:g} s") from None
        raise
