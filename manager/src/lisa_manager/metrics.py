"""The metrics of managers. `register` starts them, and adds the metrics to a registry of `prometheus_client`."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from lisa_common.observing.catalog import MAX_TOPICS, OTHER, Program
from lisa_common.observing.metrics import MetricSet

__all__ = ["METRICS", "ScheduleMetrics", "note_turn", "register", "turn"]

METRICS = MetricSet(Program.MANAGER)

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
    """The metrics of schedules: of each by its name, up to a limit, beyond which schedules share one name."""

    def __init__(self) -> None:
        self._shown: set[str] = set()

    def count(self, schedule: str, *, sent: int, skipped: int) -> None:
        """Counts ticks of a schedule that this manager has sent or left out."""
        for outcome, number in (("sent", sent), ("skipped", skipped)):
            METRICS.count("lisa_schedule_ticks_total", self._label(schedule), outcome, by=number)

    def expect(self, schedule: str, due_ms: int) -> None:
        """Notes when the next tick of a schedule is due; beyond the limit, of none."""
        if METRICS.on and (label := self._label(schedule)) != OTHER:
            METRICS.set("lisa_schedule_next_timestamp_seconds", due_ms / 1000, label)

    def forget(self, schedule: str) -> None:
        """Notes that no tick of a schedule is expected."""
        if METRICS.on and schedule in self._shown:
            METRICS.remove("lisa_schedule_next_timestamp_seconds", schedule)

    def _label(self, schedule: str) -> str:
        if schedule not in self._shown and len(self._shown) < MAX_TOPICS:
            self._shown.add(schedule)
        return schedule if schedule in self._shown else OTHER
