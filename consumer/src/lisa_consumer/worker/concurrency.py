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
        self._bounds: dict[str, int] = {}
        self._running: dict[str, int] = {}
        self._apart: set[str] = set()
        """Topics that do not share the total: their messages are handled in batches."""
        self.acquired = 0
        """Handlers that count as running, over all topics."""
        self._shared = 0
        """As `acquired`, without topics that do not share the total."""
        self._idle = 0
        """Topics that share the total and run nothing."""
        for topic, bound in bounds.items():
            self.add(topic, bound)

    def add(self, topic: str, bound: int, *, shares: bool = True) -> None:
        """Adds a topic. With more topics than the total, each still runs one handler."""
        self._bounds[topic] = bound
        self._running[topic] = 0
        if shares:
            self._idle += 1
        else:
            self._apart.add(topic)

    def remove(self, topic: str) -> None:
        """Removes a topic that runs nothing."""
        del self._bounds[topic], self._running[topic]
        self._idle -= topic not in self._apart
        self._apart.discard(topic)

    def acquire(self, topic: str) -> bool:
        """Counts one more handler of the topic, if it may run."""
        return self.acquire_some(topic, 1) > 0

    def acquire_some(self, topic: str, most: int) -> int:
        """Counts up to `most` more handlers of the topic, as many as may run. Returns how many."""
        count = min(most, self.room(topic))
        if count and topic not in self._apart:
            self._idle -= self._running[topic] == 0
            self._shared += count
        self._running[topic] += count
        self.acquired += count
        return count

    def room(self, topic: str) -> int:
        """How many more handlers of the topic may run, if no other topic begins any."""
        running, bound = self._running[topic], self._bounds[topic]
        if topic in self._apart:
            return bound - running
        # One that runs nothing counts as idle: its first handler takes what is kept free for it.
        return min(bound - running, max(0, self._total - self._shared - self._idle) + (running == 0))

    def copy(self) -> "ConcurrencyLimit":
        """A copy in the same state, to try out what could be acquired."""
        copied = ConcurrencyLimit(self._total, {})
        copied._bounds, copied._running, copied._apart = self._bounds, dict(self._running), self._apart
        copied.acquired, copied._shared, copied._idle = self.acquired, self._shared, self._idle
        return copied

    def release(self, topic: str, count: int = 1) -> None:
        """Counts so many fewer handlers of the topic."""
        self._running[topic] -= count
        self.acquired -= count
        if topic not in self._apart:
            self._shared -= count
            self._idle += self._running[topic] == 0
