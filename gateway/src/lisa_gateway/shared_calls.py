"""Calls of the server that many requests need at the same moment: made once for all of them."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

__all__ = ["SharedCalls"]

T = TypeVar("T")


class SharedCalls:
    """Whoever asks while a call of the same name is under way gets its result, or its error.

    Without this, ten thousand polls that begin at once ask for one topic ten thousand times, and wait for a connection
    until they fail.
    """

    def __init__(self) -> None:
        self._under_way: dict[tuple[str, ...], asyncio.Task[Any]] = {}

    async def share(self, name: tuple[str, ...], make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Returns what the call returns, and raises what it raises. It goes on if this caller is cancelled."""
        task = self._under_way.get(name)
        if task is None:
            task = self._under_way[name] = asyncio.create_task(make())
            task.add_done_callback(lambda ended: self._end(name, ended))
        result: T = await asyncio.shield(task)
        return result

    def _end(self, name: tuple[str, ...], ended: "asyncio.Task[Any]") -> None:
        del self._under_way[name]
        if not ended.cancelled():
            # Where all callers are gone nobody else looks at its error, which asyncio would log.
            ended.exception()
