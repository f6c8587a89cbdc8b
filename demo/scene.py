"""The state that a view shows: the events so far, as numbers and news."""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from demo.events import Begun, Cancelled, Ended, Event, Killed, Opened, Rescheduled, Sent
from demo.flights import DayClock
from lisa_manager import TopicStatus

__all__ = ["Scene"]

_NEWS = 8
_RECENT = 200


@dataclass(slots=True)
class Scene:
    """The day as it stands. `clock` is None until the airline has opened it."""

    clock: DayClock | None = None
    now_ms: int = 0
    topics: Sequence[TopicStatus] = ()
    boarded: Counter[str] = field(default_factory=Counter)
    cancelled: Counter[str] = field(default_factory=Counter)
    rescheduled: int = 0
    handled_by: Counter[str] = field(default_factory=Counter)
    killed: dict[str, Killed] = field(default_factory=dict)
    lags_ms: deque[int] = field(default_factory=lambda: deque(maxlen=_RECENT))
    topic_lags_ms: dict[str, deque[int]] = field(default_factory=dict)
    news: deque[tuple[str, str]] = field(default_factory=lambda: deque(maxlen=_NEWS))
    """Pairs of time and event text, the latest last."""
    _topics: dict[str, str] = field(default_factory=dict)

    def tell(self, event: Event) -> None:
        """Takes one event in."""
        match event:
            case Opened(start_ms, first_min, last_min, seconds):
                self.clock = DayClock(start_ms, first_min, last_min, seconds)
            case Sent(id, topic):
                self._topics[id] = topic
            case Cancelled(id, outcome, at_ms):
                self.cancelled[self._topics[id]] += 1
                self._report(at_ms, f"{id} does not fly: {outcome}")
            case Rescheduled(id, due_ms, outcome, at_ms):
                self.rescheduled += 1
                self._report(at_ms, f"{id} is late, boarding {self._label(due_ms)}: {outcome}")
            case Begun(topic=topic):
                self.lags_ms.append(event.at_ms - event.due_ms)
                self.topic_lags_ms.setdefault(topic, deque(maxlen=_RECENT)).append(event.at_ms - event.due_ms)
            case Ended():
                self._end(event)
            case Killed(worker, at_ms, held):
                self.killed[worker] = event
                self._report(at_ms, f"{worker} is killed, holding {len(held)} boarding calls")

    def _end(self, event: Ended) -> None:
        if event.error:
            self._report(event.at_ms, f"{event.id} fails, attempt {event.attempt}: {event.error}")
        else:
            self.boarded[self._topics[event.id]] += 1
            self.handled_by[event.worker] += 1

    @property
    def share(self) -> float:
        """The share of the day that is over."""
        return self.clock.share(self.now_ms) if self.clock else 0.0

    @property
    def time(self) -> str:
        """The time of the day, as a clock on the wall shows it."""
        return self._label(self.now_ms)

    def _report(self, at_ms: int, news: str) -> None:
        self.news.append((self._label(at_ms), news))

    def _label(self, at_ms: int) -> str:
        return self.clock.label(at_ms) if self.clock else "--:--"
