"""Long work for one request, done so that all other requests of the process get their turn."""

import asyncio
import time
from collections.abc import Callable
from typing import Final, TypeVar

__all__ = ["SMALL", "Turn", "aside"]

T = TypeVar("T")

SMALL: Final = 32_768
"""Bytes that take a few ms, whatever they hold."""

_TURN_S = 0.01


async def aside(size: int, work: Callable[[], T]) -> T:
    """Does work on so many bytes: at once if they are few, else in a thread."""
    return work() if size <= SMALL else await asyncio.to_thread(work)


class Turn:
    """The turn of one request, of which the work has many small steps."""

    def __init__(self) -> None:
        self._ends_s = time.monotonic() + _TURN_S

    async def step(self) -> None:
        """Lets other requests go first, once this one has had its turn."""
        if time.monotonic() >= self._ends_s:
            await asyncio.sleep(0)
            self._ends_s = time.monotonic() + _TURN_S
