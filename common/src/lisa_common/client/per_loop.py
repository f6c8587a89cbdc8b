"""Keeps apart what belongs to different event loops, so that an asyncio client works in each loop that uses it."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from typing import Generic, TypeVar

__all__ = ["PerLoop", "close_with_loop", "is_loop_running"]

T = TypeVar("T")


class PerLoop(Generic[T]):
    """A value for each event loop: connections, futures and tasks of one loop are of no use to another.

    Several loops may use it one after another, as with an `asyncio.run` for each task, or at once in several threads.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._values: dict[asyncio.AbstractEventLoop, T] = {}

    def get(self) -> T:
        """Returns the value of the running loop."""
        loop = asyncio.get_running_loop()
        value = self._values.get(loop)
        if value is None:
            for other in [other for other in list(self._values) if other.is_closed()]:
                self._values.pop(other, None)
            value = self._values[loop] = self._make()
        return value

    def take_all(self) -> list[tuple[asyncio.AbstractEventLoop, T]]:
        """Returns all values with their loops, and forgets them."""
        values, self._values = self._values, {}
        return list(values.items())


def close_with_loop(close: Callable[[], Awaitable[None]]) -> AsyncGenerator[None]:
    """Has the running loop call `close` when it shuts down, as at the end of `asyncio.run`.

    Loops end the asynchronous generators that have begun. Keep the result for as long as there is anything to close.
    """

    async def until_the_end() -> AsyncGenerator[None]:
        try:
            yield
        finally:
            await close()

    generator = until_the_end()
    with suppress(StopIteration):
        # It awaits nothing before its first item.
        generator.__anext__().send(None)
    return generator


def is_loop_running() -> bool:
    """Whether an event loop runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
