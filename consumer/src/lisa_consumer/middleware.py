"""Middleware: functions that users put around every handler."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Executor
from contextlib import suppress
from contextvars import copy_context
from typing import Any, TypeVar

from lisa_common.errors import InvalidInput

__all__ = ["Middleware", "check_middleware", "is_async", "run_in_thread", "wait_for", "wrap", "wrap_async"]

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
            if not any(map(inspect.isgeneratorfunction, (value, type(value).__call__))):
                return value
    raise InvalidInput("middleware", value, "a function that takes a delivery and call_next")


def is_async(function: object) -> bool:
    """Whether a call makes a coroutine. An object counts as what its `__call__` is."""
    return any(map(inspect.iscoroutinefunction, (function, type(function).__call__)))


def wrap(handler: Callable[[Any], Any], middleware: Iterable[Middleware]) -> Callable[[Any], Any]:
    """A plain handler within plain middleware, the first outermost."""
    for outer in reversed([each for each in middleware if not is_async(each)]):
        handler = _nested(outer, handler)
    return handler


def wrap_async(
    handler: Callable[[Any], Awaitable[object]], middleware: Iterable[Middleware]
) -> Callable[[Any], Awaitable[object]]:
    """A handler that is awaited within middleware that is awaited, the first outermost."""
    for outer in reversed([each for each in middleware if is_async(each)]):
        handler = _nested(outer, handler)
    return handler


def _nested(outer: Middleware, inner: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda delivery: outer(delivery, inner)


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
