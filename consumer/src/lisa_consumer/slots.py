"""Who may run: bounds handlers over all topics, and keeps one slot for each, so that no topic starves another."""

from collections.abc import Mapping

from lisa_common.errors import InvalidInput

__all__ = ["Slots"]


class Slots:
    """`total` slots for topics with a bound of their own.

    A topic that runs nothing always finds a slot: the others leave one free for it.
    """

    def __init__(self, total: int, bounds: Mapping[str, int]) -> None:
        if total < len(bounds):
            raise InvalidInput("concurrency", total, f"at least one for each of the {len(bounds)} topics is")
        self._total = total
        self._bounds = dict(bounds)
        self._running = dict.fromkeys(bounds, 0)
        self._taken = 0
        self._idle = len(bounds)

    def take(self, topic: str) -> bool:
        """Takes a slot for the topic if it may have one."""
        running = self._running[topic]
        if running >= self._bounds[topic]:
            return False
        if running and self._taken + self._idle >= self._total:
            return False
        self._idle -= running == 0
        self._running[topic] += 1
        self._taken += 1
        return True

    def copy(self) -> "Slots":
        """The same slots, taken alike, to see who would be given one."""
        copied = Slots(self._total, self._bounds)
        copied._running = dict(self._running)
        copied._taken, copied._idle = self._taken, self._idle
        return copied

    def give_back(self, topic: str) -> None:
        """Returns a slot of the topic."""
        self._running[topic] -= 1
        self._taken -= 1
        self._idle += self._running[topic] == 0

    @property
    def taken(self) -> int:
        """Slots in use."""
        return self._taken
