"""The metrics of managers. `register` starts them, and adds the metrics to a registry of `prometheus_client`."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from lisa_common.observing.catalog import Program
from lisa_common.observing.metrics import MetricSet

__all__ = ["METRICS", "note_turn", "register", "turn"]

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
