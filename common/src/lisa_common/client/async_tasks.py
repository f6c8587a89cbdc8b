"""Tasks of asyncio: side by side, and their cancellation."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

__all__ = ["beside", "cancel_all"]

T = TypeVar("T")

_TURNS = 4
"""Turns of the event loop in which a request borrows a connection and is written: two, on a Cluster four."""


async def beside(request: Coroutine[Any, Any, T], work: Callable[[], Awaitable[object]]) -> T:
    """The result of a request. Works once the request is under way."""
    task = asyncio.create_task(request)
    try:
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        await work()
        return await task
    finally:
        if not task.done():
            await cancel_all(task)


async def cancel_all(*tasks: "asyncio.Task[Any]") -> None:
    """Cancels tasks and returns once all have ended, in whatever way.

    Cancels repeatedly: in Python 3.11 `wait_for`, through which the Redis client writes, loses a cancellation that
    comes at the moment of its success.
    """
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        ended, pending = await asyncio.wait(pending, timeout=0.1)
        for task in ended:
            if not task.cancelled():
                task.exception()
