"""Bounds the handlers that run at once, over all topics and for each, so that no topic starves another."""

from collections.abc import Mapping

from lisa_common.errors import InvalidInput

__all__ = ["ConcurrencyLimit"]


class ConcurrencyLimit:
    """A limit of `total` over all topics, and a bound for each of them.

    A topic that runs nothing can always start one handler: the others leave that much of the total free.
    """

    def __init__(self, total: int, bounds: Mapping[str, int]) -> None:
        if total < len(bounds):
            raise InvalidInput("concurrency", total, f"at least {len(bounds)}, 1 for each topic")
        self._total = total
        self._bounds = dict(bounds)
        self._running = dict.fromkeys(bounds, 0)
        self.acquired = 0
        """Handlers that count as running, over all topics."""
        self._idle = len(bounds)

    def acquire(self, topic: str) -> bool:
        """Counts one more handler of the topic, if it may run."""
        running = self._running[topic]
        if running >= self._bounds[topic]:
            return False
        if running and self.acquired + self._idle >= self._total:
            return False
        self._idle -= running == 0
        self._running[topic] += 1
        self.acquired += 1
        return True

    def copy(self) -> "ConcurrencyLimit":
        """A copy in the same state, to try out what could be acquired."""
        copied = ConcurrencyLimit(self._total, self._bounds)
        copied._running = dict(self._running)
        copied.acquired, copied._idle = self.acquired, self._idle
        return copied

    def release(self, topic: str) -> None:
        """Counts one handler of the topic less."""
        self._running[topic] -= 1
        self.acquired -= 1
        self._idle += self._running[topic] == 0
