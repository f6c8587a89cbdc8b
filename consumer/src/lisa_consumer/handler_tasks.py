"""The tasks of handlers that are under way."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from lisa_consumer.held_delivery import HeldDelivery
from lisa_consumer.names import HANDLER

__all__ = ["HandlerTasks"]

_CANCEL_S = 1.0
"""How long a cancelled handler may take to end."""


class HandlerTasks:
    """Starts the tasks of handlers, and calls `on_ended` with the deliveries whose tasks end.

    Many end in one turn of the event loop. `on_ended` is called after it, once for all of them.
    """

    def __init__(self, on_ended: Callable[[list[HeldDelivery]], None]) -> None:
        self._on_ended = on_ended
        loop = asyncio.get_running_loop()
        self._create_task, self._call_soon = loop.create_task, loop.call_soon
        self._running: dict[int, asyncio.Task[None]] = {}
        """By the identity of what they handle: asking for the current task takes longer."""
        self._ended: list[HeldDelivery] = []

    def __len__(self) -> int:
        return len(self._running)

    def start(self, what: object, handling: Coroutine[Any, Any, None]) -> None:
        """Starts a task. The coroutine has to call `end` with the same object."""
        # The name tells the worker that a handler still runs.
        self._running[id(what)] = self._create_task(handling, name=HANDLER)

    def end(self, what: object, deliveries: Sequence[HeldDelivery]) -> None:
        """Takes a task that is about to end, and the deliveries that it handled."""
        del self._running[id(what)]
        if not self._ended:
            self._call_soon(self._flush)
        self._ended += deliveries

    def _flush(self) -> None:
        ended, self._ended = self._ended, []
        self._on_ended(ended)

    @property
    def unfinished(self) -> list["asyncio.Task[None]"]:
        """The tasks that still run."""
        return [task for task in self._running.values() if not task.done()]

    async def cancel(self) -> None:
        """Cancels all tasks. A handler that ignores its cancellation is left behind."""
        if running := self.unfinished:
            for task in running:
                task.cancel()
            await asyncio.wait(running, timeout=_CANCEL_S)
