"""Topics whose handlers do not end, while what was held behind them is given back."""

import logging
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lisa_common.logs import event
from lisa_consumer.worker.held import HeldDelivery
from lisa_consumer.worker.windows import Windows

__all__ = ["Stall", "Stalls"]

logger = logging.getLogger(__name__)

_SLOW = 4
"""A topic is stuck if no handler ends for so many times the mean of its handlers: those may take hours."""


@dataclass(slots=True)
class Stall:
    """A topic of which nothing is read, as its handlers take all slots and do not end."""

    since: float
    """When a handler last ended, or the oldest delivery that still runs was read; of the monotonic clock."""
    stuck_after_s: float
    oldest: str
    """The id of the message that has run for longest."""
    is_reported: bool = False


class Stalls(dict[str, Stall]):
    """The stalls of a worker, by topic. Logs each once when the topic counts as stuck, and once when it goes on."""

    def __init__(self, windows: Windows) -> None:
        super().__init__()
        self._windows = windows

    def begin(self, topic: str, running: Sequence[HeldDelivery], visibility_s: float) -> None:
        """Reads no more of a topic whose deliveries have waited for longer than its visibility timeout behind these."""
        if topic in self:
            return
        self._windows.set_aside(topic, math.inf)
        window = self._windows[topic]
        read_at, oldest = min(((held.read_at, held.delivery.id) for held in running), default=(0.0, "?"))
        since, stuck_after_s = max(read_at, window.observed_at), max(visibility_s, window.mean_s * _SLOW)
        self[topic] = Stall(since, stuck_after_s, oldest)

    def end(self, topics: Iterable[str]) -> None:
        """Reads topics again, because their handlers may begin."""
        for topic in topics:
            stall = self.pop(topic)
            self._windows.read_again(topic)
            if stall.is_reported:
                seconds = round(time.monotonic() - stall.since, 1)
                fields = event("topic_unstuck", topic=topic, seconds=seconds)
                logger.info("topic %s goes on: it was stuck for %g s", topic, seconds, extra=fields)

    def report(self) -> None:
        """Logs the topics that are newly stuck."""
        for topic, stall in self._stuck():
            if not stall.is_reported:
                stall.is_reported = True
                seconds = round(time.monotonic() - stall.since, 1)
                logger.warning(
                    "topic %s is stuck: all its handlers are busy, and none has ended for %g s, the oldest with %s; "
                    "messages that had not begun go back to the group",
                    *(topic, seconds, stall.oldest),
                    extra=event("topic_stuck", topic=topic, seconds=seconds, id=stall.oldest),
                )

    def find_problem(self) -> str:
        """Which topics are stuck, and for how long; "" if none is. Thread-safe."""
        now = time.monotonic()
        return ", ".join(f"topic {topic} is stuck for {now - stall.since:.0f} s" for topic, stall in self._stuck())

    def _stuck(self) -> list[tuple[str, Stall]]:
        now = time.monotonic()
        return [(topic, stall) for topic, stall in list(self.items()) if now - stall.since > stall.stuck_after_s]
