"""Events that are counted together: by itself, each would cost more than the rest of its way through a busy program."""

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

__all__ = ["Gathered"]

T = TypeVar("T")

_MOST = 1_000


class Gathered(Generic[T]):
    """Events of one kind, from any thread. `count` counts many of them.

    Events are gathered between `begin` and `end`; otherwise `on` is False, and the caller counts each event itself. A
    program that calls `begin` also calls `flush`: before it shows metrics, and from time to time.
    """

    def __init__(self, count: Callable[[Sequence[T]], None]) -> None:
        self.on = False
        self._count = count
        self._events: list[T] = []
        self._users = 0
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Gathers events from now on, until `end` is called as often."""
        with self._lock:
            self._users += 1
            self.on = True

    def end(self) -> None:
        """Undoes one call of `begin`, and counts what was gathered."""
        with self._lock:
            self._users -= 1
            self.on = self._users > 0
        self.flush()

    def add(self, event: T) -> None:
        """Adds an event."""
        self._events.append(event)
        if len(self._events) >= _MOST:
            self.flush()

    def flush(self) -> None:
        """Counts what was gathered."""
        with self._lock:
            # Other threads may add events at any moment, behind these.
            events = self._events[:]
            del self._events[: len(events)]
        if events:
            self._count(events)
