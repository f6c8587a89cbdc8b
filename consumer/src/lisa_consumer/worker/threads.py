"""The threads of plain handlers, and handlers that still run when their worker has drained."""

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import NoReturn, ParamSpec, TypeVar

from lisa_common.logs import event
from lisa_consumer.names import HANDLER

__all__ = ["HandlerThreads", "abandon_handlers", "tasks_left", "threads_left"]

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


class HandlerThreads(Executor):
    """Runs each call at once, in an idle thread or a new one: what has a slot never waits for a thread.

    A `ThreadPoolExecutor` of several threads has a size of its own beside the slots. So each of these has one thread.
    """

    def __init__(self) -> None:
        self._threads: set[ThreadPoolExecutor] = set()
        self._idle: list[ThreadPoolExecutor] = []
        self._is_shut_down = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Starts a call. Raises RuntimeError after `shutdown`, and if the system has no more threads."""
        if self._is_shut_down:
            raise RuntimeError("the worker of this handler has ended")
        thread = self._idle.pop() if self._idle else ThreadPoolExecutor(1, f"{HANDLER}-{len(self._threads)}")
        called = thread.submit(fn, *args, **kwargs)
        self._threads.add(thread)
        called.add_done_callback(lambda _: self._idle.append(thread))
        return called

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 - as Executor has it
        """Ends each thread once its call has ended."""
        self._is_shut_down = True
        for thread in self._threads:
            thread.shutdown(wait, cancel_futures=cancel_futures)


def tasks_left() -> bool:
    """Whether a handler task still runs in this event loop."""
    return any(task.get_name() == HANDLER for task in asyncio.all_tasks())


def threads_left(until: float) -> bool:
    """Whether a handler thread still runs; waits for them until this moment of the monotonic clock."""
    threads = [thread for thread in threading.enumerate() if thread.name.startswith(HANDLER)]
    for thread in threads:
        # Idle threads end once they notice that their pool is shut down, which takes a moment on a busy machine.
        thread.join(max(0.2, until - time.monotonic()))
    return any(thread.is_alive() for thread in threads)


def abandon_handlers() -> NoReturn:
    """Ends the process: nothing else stops a thread, or a coroutine that ignores its cancellation."""
    text = "abandoned handlers that still ran after the drain; their messages come again"
    logger.error(text, extra=event("handlers_abandoned"))
    logging.shutdown()
    os._exit(1)
