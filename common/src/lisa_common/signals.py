"""Programs that run in an event loop until a signal."""

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from lisa_common.logs import event

__all__ = ["run_signalled"]

logger = logging.getLogger(__name__)

T = TypeVar("T")


def run_signalled(
    main: Coroutine[Any, Any, T], *, loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None
) -> T:
    """Runs a coroutine that handles signals, as `asyncio.run` does. Call it in the main thread.

    If another task raises SystemExit or KeyboardInterrupt, asyncio leaves its loop at once. Here that is logged, the
    coroutine ends as at a SIGTERM, and then the exception is raised.
    """
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        loop, ending = runner.get_loop(), None
        task = loop.create_task(main)
        try:
            while not task.done():
                try:
                    loop.run_until_complete(task)
                except (SystemExit, KeyboardInterrupt) as error:
                    # A SIGINT before the coroutine handles signals ends it at once.
                    if task.done() or signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
                        raise
                    ending = error
                    text = "a task raised %s: the program stops, as at SIGTERM"
                    logger.error(text, type(error).__name__, exc_info=error, extra=event("task_exited"))
                    signal.raise_signal(signal.SIGTERM)
            if ending is not None:
                raise ending
            return task.result()
        finally:
            # A loop closes its pipe for signals before it removes their handlers: one in between would show an error.
            signal.set_wakeup_fd(-1)
