"""Handlers that still run when their worker has drained."""

import asyncio
import logging
import os
import threading
import time
from typing import NoReturn

from lisa_common.logs import event
from lisa_consumer.names import HANDLER

__all__ = ["abandon_handlers", "tasks_left", "threads_left"]

logger = logging.getLogger(__name__)


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
