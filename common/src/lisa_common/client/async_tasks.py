"""Waits of asyncio tasks, and their cancellation."""

import asyncio
from contextlib import suppress
from typing import Any

__all__ = ["cancel_all", "wait_at_most"]


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
