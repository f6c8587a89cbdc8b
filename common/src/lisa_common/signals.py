"""Programs that run in an event loop until a signal."""

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

__all__ = ["run_signalled"]

T = TypeVar("T")


def run_signalled(
    main: Coroutine[Any, Any, T], *, loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None
) -> T:
    """Runs a coroutine that handles signals, as `asyncio.run` does. Call it in the main thread."""
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        try:
            return runner.run(main)
        finally:
            # A loop closes its pipe for signals before it removes their handlers: one in between would show an error.
            signal.set_wakeup_fd(-1)
