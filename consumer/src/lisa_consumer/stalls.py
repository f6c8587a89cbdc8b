"""Topics whose handlers do not end, while what was held behind them is given back."""

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass

from lisa_common.logs import event

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


class Stalls:
    """The stalls of a worker, by topic. Logs each once when the topic counts as stuck, and once when it goes on."""

    def __init__(self) -> None:
        self._stalls: dict[str, Stall] = {}

    def __contains__(self, topic: str) -> bool:
        return topic in self._stalls

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._stalls))

    def __bool__(self) -> bool:
        return bool(self._stalls)

    def begin(self, topic: str, *, since: float, visibility_s: float, mean_s: float, oldest: str) -> None:
        """Adds a topic whose deliveries have waited for longer than its visibility timeout."""
        self._stalls[topic] = Stall(since, max(visibility_s, mean_s * _SLOW), oldest)

    def end(self, topic: str) -> None:
        """Removes a topic, as a handler of it may begin."""
        stall = self._stalls.pop(topic)
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
        return [
            (topic, stall) for topic, stall in list(self._stalls.items()) if now - stall.since > stall.stuck_after_s
        ]
