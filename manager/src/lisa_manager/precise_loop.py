"""An event loop whose timers are as precise as the system's."""

import asyncio
import select
import sys
from selectors import DefaultSelector, SelectorKey

__all__ = ["precise_loop"]

_SETSIZE = 1024
"""`select` takes only files with lower numbers; with a higher one, timers are as precise as elsewhere in Python."""


class _PreciseSelector(DefaultSelector):
    """Epoll that waits no longer than it is told to: Python rounds its timeouts up to a whole ms."""

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        if timeout and timeout > 0 and self.fileno() < _SETSIZE:
            # `select` waits to the µs, and an epoll is a file that it can wait for.
            select.select([self], [], [], timeout)
            timeout = 0
        return super().select(timeout)


def precise_loop() -> asyncio.AbstractEventLoop:
    """Returns a new event loop. What other systems than Linux have in place of epoll is precise as it is."""
    return asyncio.SelectorEventLoop(_PreciseSelector() if sys.platform == "linux" else None)
