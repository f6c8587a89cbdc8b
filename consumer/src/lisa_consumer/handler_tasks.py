"""The tasks of handlers that are under way."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextvars import copy_context
from typing import Any

from lisa_consumer.held_delivery import HeldDelivery
from lisa_consumer.names import HANDLER

__all__ = ["HandlerTasks"]

_CANCEL_S = 1.0
"""How long a cancelled handler may take to end."""


class HandlerTasks:
    """Starts the tasks of handlers, and calls `on_ended` with the deliveries whose tasks end.

    Many end in one turn of the event loop. `on_ended` is called once for all of them: at once if none is left, or else
    after the turn.
    """

    def __init__(self, on_ended: Callable[[list[HeldDelivery]], None]) -> None:
        self._on_ended = on_ended
        loop = asyncio.get_running_loop()
        self._create_task, self._call_soon = loop.create_task, loop.call_soon
        self._context = copy_context()
        """Of the worker: what begins as a handler ends must not see context variables of that handler."""
        self._tasks: dict[HeldDelivery, asyncio.Task[None]] = {}
        """By the delivery that each handles, or the first one of its batch."""
        self._ended: list[HeldDelivery] = []
        self._ending = 0
        """Tasks of these that have ended."""

    def __len__(self) -> int:
        return len(self.unfinished)

    def start(self, first: HeldDelivery, handling: Coroutine[Any, Any, None]) -> None:
        """Starts the task of a delivery, or of a batch with this as its first. The coroutine has to call `end`."""
        # The name tells the worker that a handler still runs.
        self._tasks[first] = self._create_task(handling, name=HANDLER)

    def end(self, deliveries: Sequence[HeldDelivery]) -> None:
        """Takes deliveries whose task is about to end."""
        self._ended += deliveries
        self._ending += 1
        if self._ending == len(self._tasks):
            # Nothing else will end in this turn, so others may begin in the next one.
            self._context.run(self._flush)
        elif self._ending == 1:
            self._call_soon(self._flush, context=self._context)

    def _flush(self) -> None:
        if self._ended:
            ended, self._ended, self._ending = self._ended, [], 0
            for held in ended:
                self._tasks.pop(held, None)
            self._on_ended(ended)

    @property
    def unfinished(self) -> list["asyncio.Task[None]"]:
        """The tasks that still run."""
        return [task for task in self._tasks.values() if not task.done()]

    async def cancel(self) -> None:
        """Cancels all tasks. A handler that ignores its cancellation is left behind."""
        if running := self.unfinished:
            for task in running:
                task.cancel()
            await asyncio.wait(running, timeout=_CANCEL_S)
        self._flush()
