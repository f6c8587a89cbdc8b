"""What happened in windows of time, by topic: the data of `getMonitorData`."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from lisa_common.observing.catalog import MAX_TOPICS, OTHER
from lisa_manager import TopicEvents

__all__ = ["Event", "Gap", "Monitor", "Window"]


class Event(StrEnum):
    """What is counted, by its name in the interface."""

    SEND = "sendMsg"
    PULL = "pullMsg"
    DELETE = "deleteMsg"
    ACK = "ackMsg"
    GET = "getMsg"
    READY = "triggerMsgReady"
    END_LIFE = "triggerMsgEndLife"
    TIMEOUT = "triggerMsgTimeout"


@dataclass(slots=True)
class Gap:
    """Times from when messages were due to an event, in ms."""

    count: int = 0
    total_ms: float = 0.0
    max_ms: int = 0

    def add(self, gaps_ms: Iterable[int]) -> None:
        """Adds times."""
        for gap_ms in gaps_ms:
            self.merge(1, abs(gap_ms), abs(gap_ms))

    def merge(self, count: int, total_ms: float, max_ms: int) -> None:
        """Adds what another process has gathered."""
        self.count += count
        self.total_ms += total_ms
        self.max_ms = max(self.max_ms, max_ms)

    def fields(self, topic: str) -> dict[str, Any]:
        """As the interface shows it; `avg` is a fraction, the others are whole."""
        return {"topic": topic, "count": self.count, "avg": self.total_ms / max(1, self.count), "max": self.max_ms}


@dataclass(slots=True)
class Window:
    """What happened in one window."""

    events: dict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(lambda: dict.fromkeys(Event, 0)))
    pulled: dict[str, Gap] = field(default_factory=lambda: defaultdict(Gap))
    ready: dict[str, Gap] = field(default_factory=lambda: defaultdict(Gap))


class Monitor:
    """Counts in windows of `length_s` seconds; shows the last complete one.

    Up to `MAX_TOPICS` topics that are known count by name, all others as `OTHER`.
    """

    def __init__(self, length_s: float, is_known: Callable[[str], bool]) -> None:
        self._length_s = length_s
        self._is_known = is_known
        self._ends = time.monotonic() + length_s
        self._present = Window()
        self._complete = Window()
        self.stale = 0
        """Acks since the start of messages that were not lent, or no longer lent."""

    def count(self, topic: str, event: Event, number: int = 1) -> None:
        """Counts events of this moment."""
        self._present.events[self._name(topic)][event] += number

    def count_pulled(self, topic: str, gaps_ms: list[int]) -> None:
        """Counts messages that were pulled so long after they were due."""
        self.count(topic, Event.PULL, len(gaps_ms))
        self._present.pulled[self._name(topic)].add(gaps_ms)

    def count_managers(self, events: Mapping[str, TopicEvents]) -> None:
        """Counts what a manager did lately."""
        for topic, of in events.items():
            name = self._name(topic, by_manager=True)
            for event, number in ((Event.READY, of.ready), (Event.END_LIFE, of.ended), (Event.TIMEOUT, of.timeouts)):
                self._present.events[name][event] += number
            if of.ready:
                self._present.ready[name].merge(of.ready, of.late_ms, of.latest_ms)

    def _name(self, topic: str, *, by_manager: bool = False) -> str:
        """The name under which a topic counts in the present window: clients may make up any number of names."""
        self._rotate()
        events = self._present.events
        if topic in events or (len(events) < MAX_TOPICS and (by_manager or self._is_known(topic))):
            return topic
        return OTHER

    def complete(self) -> Window:
        """The last complete window; empty before the first one has ended."""
        self._rotate()
        return self._complete

    def _rotate(self) -> None:
        now = time.monotonic()
        if now < self._ends:
            return
        # A window in which nobody looked and nothing happened is empty.
        is_next = now < self._ends + self._length_s
        self._complete = self._present if is_next else Window()
        self._present = Window()
        self._ends += self._length_s * (1 + (now - self._ends) // self._length_s)
