"""Asyncio tasks: beside a block, until an event, and their cancellation."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

__all__ = ["beside", "cancel_all", "wait_at_most"]


@asynccontextmanager
async def beside(coroutine: Coroutine[Any, Any, object]) -> AsyncIterator[None]:
    """Runs a coroutine while a block runs, and cancels it at the end of the block. Its errors are nobody's."""
    task = asyncio.create_task(coroutine)
    try:
        yield
    finally:
        await cancel_all(task)


async def wait_at_most(event: asyncio.Event, seconds: float | None) -> None:
    """Waits for an event, but no longer than so many seconds; None for ever."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


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
