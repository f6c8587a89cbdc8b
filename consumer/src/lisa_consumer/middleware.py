"""Middleware: functions that users put around every handler."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Executor
from contextlib import suppress
from contextvars import copy_context
from typing import Any, TypeVar

from lisa_common.errors import InvalidInput

__all__ = [
    "Middleware",
    "check_has_run",
    "check_middleware",
    "is_async",
    "is_generator",
    "run_in_thread",
    "wait_for",
    "wrap",
    "wrap_async",
]

T = TypeVar("T")

Middleware = Callable[[Any, Callable[[Any], Any]], Any]
"""`async def middleware(delivery, call_next)`, which awaits `call_next(delivery)`; or a plain function, which calls it.

A coroutine function runs in the event loop, around any handler. A plain function runs in the thread of a plain
handler. What a batch handler gets is a list of deliveries.
"""


def check_middleware(value: object) -> Middleware:
    """A caller's middleware; raises InvalidInput."""
    if callable(value) and not inspect.isclass(value):
        with suppress(TypeError, ValueError):
            inspect.signature(value, follow_wrapped=False).bind(None, None)
            if not is_generator(value):
                return value
    raise InvalidInput("middleware", value, "a function that takes a delivery and call_next")


def is_async(function: object) -> bool:
    """Whether a call makes a coroutine. An object counts as what its `__call__` is."""
    return any(map(inspect.iscoroutinefunction, (function, type(function).__call__)))


def is_generator(function: object) -> bool:
    """Whether a call makes a generator of either kind, and runs nothing."""
    kinds = (inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    return any(is_kind(each) for each in (function, type(function).__call__) for is_kind in kinds)


def check_has_run(result: object, *, awaited: bool = False) -> Any:
    """The result of a handler or of middleware. Raises TypeError if that is work that nobody has done or will do.

    A decorator may hide a generator, and an `await` may be missing. If such a message were acked, it would be lost.
    Without `awaited` the caller may still await the result.
    """
    is_left = inspect.isgenerator(result) or inspect.isasyncgen(result)
    if awaited and inspect.isawaitable(result):
        # A task that was awaited may be returned.
        is_left = not (asyncio.isfuture(result) and result.done())
    if not is_left:
        return result
    if inspect.iscoroutine(result):
        result.close()
    kind = type(result).__name__.replace("_", " ")
    raise TypeError(f"the work of a handler or middleware must be run or awaited before it ends; got a {kind}")


def wrap(handler: Callable[[Any], Any], middleware: Iterable[Middleware]) -> Callable[[Any], Any]:
    """A plain handler within plain middleware, the first outermost."""
    for outer in reversed([each for each in middleware if not is_async(each)]):
        handler = _nested(outer, handler)
    return handler


def _nested(outer: Middleware, inner: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def call(delivery: Any) -> Any:
        results = list[Any]()

        def call_next(passed: Any) -> Any:
            results.append(check_has_run(inner(passed)))
            return results[-1]

        result = outer(delivery, call_next)
        for each in results:
            # What is to be awaited reaches the worker only if the middleware returns it.
            if each is not result:
                check_has_run(each, awaited=True)
        return result

    return call


def wrap_async(
    handler: Callable[[Any], Awaitable[object]], middleware: Iterable[Middleware]
) -> Callable[[Any], Awaitable[object]]:
    """A handler that is awaited within middleware that is awaited, the first outermost."""
    for outer in reversed([each for each in middleware if is_async(each)]):
        handler = _awaited(outer, handler)
    return handler


def _awaited(outer: Middleware, inner: Callable[[Any], Any]) -> Callable[[Any], Any]:
    async def call(delivery: Any) -> Any:
        made = list[Any]()

        def call_next(passed: Any) -> Any:
            made.append(inner(passed))
            return made[-1]

        result = await outer(delivery, call_next)
        for each in made:
            # The middleware has forgotten to await it.
            if inspect.iscoroutine(each) and inspect.getcoroutinestate(each) == inspect.CORO_CREATED:
                check_has_run(each, awaited=True)
        return result

    return call


async def run_in_thread(handler: Callable[[Any], Any], delivery: Any, threads: Executor) -> object:
    """Runs a plain handler. A cancelled call still waits for its thread, which cannot be stopped."""
    loop = asyncio.get_running_loop()
    running = loop.run_in_executor(threads, copy_context().run, _outcome, handler, delivery)
    result, error = await wait_for(running)
    if error is not None:
        raise error
    return result


async def wait_for(running: asyncio.Future[T]) -> T:
    """Waits even when cancelled: a thread keeps running, and its message must not begin elsewhere meanwhile."""
    while not running.done():
        with suppress(asyncio.CancelledError):
            await asyncio.shield(running)
    return running.result()


def _outcome(handler: Callable[[Any], Any], delivery: Any) -> tuple[object, BaseException | None]:
    # A future cannot carry every exception: it refuses StopIteration, and GeneratorExit closes the waiting coroutine.
    try:
        return handler(delivery), None
    except BaseException as error:  # noqa: BLE001 - the caller raises it again
        return None, error
