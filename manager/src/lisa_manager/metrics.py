"""The metrics of managers. `register` starts them, and adds the metrics to a registry of `prometheus_client`."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from lisa_common.observing.catalog import MAX_TOPICS, OTHER, Program
from lisa_common.observing.metrics import MetricSet

__all__ = ["METRICS", "ScheduleMetrics", "note_turn", "register", "turn"]

METRICS = MetricSet(Program.MANAGER)

_OTHERS = OTHER, OTHER

register = METRICS.register


@contextmanager
def turn(job: str) -> Iterator[None]:
    """Measures one turn of a job; counts an error that it raises."""
    began = time.monotonic()
    try:
        yield
    except Exception:
        METRICS.count("lisa_manager_errors_total", job)
        raise
    METRICS.observe("lisa_manager_turn_seconds", [time.monotonic() - began], job)
    note_turn(job)


def note_turn(job: str) -> None:
    """Notes that a job has just completed its work."""
    METRICS.set("lisa_manager_last_turn_timestamp_seconds", time.time(), job)


class ScheduleMetrics:
    """The metrics of schedules: of each by topic and name, up to a limit, beyond which schedules share one name."""

    def __init__(self) -> None:
        self._shown: set[tuple[str, str]] = set()

    def count(self, topic: str, schedule: str, *, sent: int, skipped: int) -> None:
        """Counts ticks of a schedule that this manager has sent or left out."""
        for outcome, number in (("sent", sent), ("skipped", skipped)):
            METRICS.count("lisa_schedule_ticks_total", *self._labels(topic, schedule), outcome, by=number)

    def expect(self, topic: str, schedule: str, due_ms: int) -> None:
        """Notes when the next tick of a schedule is due; beyond the limit, of none."""
        if METRICS.on and (labels := self._labels(topic, schedule)) != _OTHERS:
            METRICS.set("lisa_schedule_next_timestamp_seconds", due_ms / 1000, *labels)

    def forget(self, topic: str, schedule: str) -> None:
        """Notes that no tick of a schedule is expected."""
        if METRICS.on and (topic, schedule) in self._shown:
            METRICS.remove("lisa_schedule_next_timestamp_seconds", topic, schedule)

    def _labels(self, topic: str, schedule: str) -> tuple[str, str]:
        labels = topic, schedule
        if len(self._shown) < MAX_TOPICS:
            self._shown.add(labels)
        return labels if labels in self._shown else _OTHERS
