"""Middleware: functions that users put around every handler."""

import asyncio
import concurrent.futures
import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Executor
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from contextvars import copy_context
from typing import Any, TypeVar

from lisa_common.errors import InvalidInput

__all__ = [
    "Middleware",
    "check_has_run",
    "check_middleware",
    "is_async",
    "is_function",
    "is_generator",
    "run_in_thread",
    "takes",
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


def check_middleware(value: Any) -> Middleware:
    """A caller's middleware; raises InvalidInput."""
    if is_function(value) and takes(value, 2) and not is_generator(value):
        checked: Middleware = value
        return checked
    raise InvalidInput("middleware", value, "a function that takes a delivery and call_next")


def is_function(value: object) -> bool:
    """Returns True for a callable that is no class: calling a class only makes an object."""
    return callable(value) and not inspect.isclass(value)


def takes(function: Callable[..., object], count: int) -> bool:
    """Returns True if a function accepts this number of arguments, or if its signature is unknown."""
    try:
        # A decorator's function counts, whatever it wraps.
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):
        # Some functions that are written in C do not say.
        return True
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True


def is_async(function: object) -> bool:
    """Whether a call makes a coroutine. An object counts as what its `__call__` is."""
    return any(map(inspect.iscoroutinefunction, (function, type(function).__call__)))


def is_generator(function: object) -> bool:
    """Whether a call makes a generator of either kind, and runs nothing."""
    kinds = (inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    return any(is_kind(each) for each in (function, type(function).__call__) for is_kind in kinds)


def check_has_run(result: object, *, awaited: bool = False) -> Any:
    """The result of a handler or of middleware. Raises TypeError if that is work that nobody has done.

    A decorator may hide a generator, and an `await` may be missing. If such a message were acked, it would be lost.
    Without `awaited` the caller may still await the result. Of a future that is done, raises the error.
    """
    if _is_left(result, awaited=awaited):
        if inspect.iscoroutine(result) and inspect.getcoroutinestate(result) == inspect.CORO_CREATED:
            result.close()
        kind = type(result).__name__.strip("_").replace("_", " ")
        raise TypeError(f"the work of a handler or middleware must be run or awaited before it ends; got a {kind}")
    if awaited and isinstance(result, _FUTURES):
        result.result()
    return result


_FUTURES = (asyncio.Future, concurrent.futures.Future)


def _is_left(result: object, *, awaited: bool) -> bool:
    """Whether a result is work that has not ended, as far as one can tell."""
    if isinstance(result, concurrent.futures.Future):
        return not result.done()
    if inspect.isawaitable(result):
        if not awaited:
            return False
        if inspect.iscoroutine(result):
            return inspect.getcoroutinestate(result) != inspect.CORO_CLOSED
        if asyncio.isfuture(result):
            return not result.done()
    if isinstance(result, AbstractContextManager | AbstractAsyncContextManager):
        # That of `contextmanager` holds the generator that it has made.
        result = getattr(result, "gen", None)
    if inspect.isgenerator(result):
        return inspect.getgeneratorstate(result) != inspect.GEN_CLOSED
    return inspect.isasyncgen(result)


def wrap(handler: Callable[[Any], Any], middleware: Iterable[Middleware]) -> Callable[[Any], Any]:
    """A plain handler within plain middleware, the first outermost."""
    for outer in reversed([each for each in middleware if not is_async(each)]):
        handler = _nested(outer, handler)
    return handler


def _nested(outer: Middleware, inner: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def call(delivery: Any) -> Any:
        results = list[Any]()
        result = outer(delivery, _noting(inner, results))
        if inspect.isawaitable(result):
            return _finished(result, results)
        for each in results:
            check_has_run(each, awaited=True)
        return result

    return call


def _noting(inner: Callable[[Any], Any], results: list[Any]) -> Callable[[Any], Any]:
    """`call_next`, which adds each of its results to a list."""

    def call_next(passed: Any) -> Any:
        results.append(check_has_run(inner(passed)))
        return results[-1]

    return call_next


async def _finished(outer: Awaitable[Any], inner: Sequence[object]) -> Any:
    """The result of middleware. Raises TypeError if it has not awaited what it called."""
    result = await outer
    for each in inner:
        check_has_run(each, awaited=True)
    return result


def wrap_async(
    handler: Callable[[Any], Awaitable[object]], middleware: Iterable[Middleware]
) -> Callable[[Any], Awaitable[object]]:
    """A handler that is awaited within middleware that is awaited, the first outermost."""
    for outer in reversed([each for each in middleware if is_async(each)]):
        handler = _awaited(outer, handler)
    return handler


def _awaited(outer: Middleware, inner: Callable[[Any], Any]) -> Callable[[Any], Any]:
    async def call(delivery: Any) -> Any:
        results = list[Any]()
        return await _finished(outer(delivery, _noting(inner, results)), results)

    return call


async def run_in_thread(
    handler: Callable[[Any], Any], delivery: Any, threads: Executor, stop: Callable[[], None] | None = None
) -> object:
    """Runs a plain handler. A cancelled call calls `stop`, and still waits for its thread, which cannot be stopped."""
    loop = asyncio.get_running_loop()
    running = loop.run_in_executor(threads, copy_context().run, _outcome, handler, delivery)
    result, error = await wait_for(running, stop)
    if error is not None:
        raise error
    return result


async def wait_for(running: asyncio.Future[T], stop: Callable[[], None] | None = None) -> T:
    """Waits even when cancelled: a thread keeps running, and its message must not begin elsewhere meanwhile."""
    while not running.done():
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            if stop:
                stop()
    return running.result()


def _outcome(handler: Callable[[Any], Any], delivery: Any) -> tuple[object, BaseException | None]:
    # A future cannot carry every exception: it refuses StopIteration, and GeneratorExit closes the waiting coroutine.
    try:
        return handler(delivery), None
    except BaseException as error:  # noqa: BLE001 - the caller raises it again
        return None, error
