"""What producers count. `register` starts it, and adds the metrics to a registry of `prometheus_client`."""

from lisa_common.errors import InvalidInput
from lisa_common.observing.catalog import OTHER, Program
from lisa_common.observing.metrics import MetricSet
from lisa_common.validation import check_name

__all__ = ["METRICS", "count_sent", "note_send", "register"]

METRICS = MetricSet(Program.PRODUCER)

register = METRICS.register


def count_sent(topic: str, outcome: str, count: int = 1) -> None:
    """Counts messages of one outcome. A name that no topic can have counts as another topic."""
    if METRICS.on and count:
        if outcome == "failed":
            try:
                check_name("topic", topic)
            except InvalidInput:
                topic = OTHER
        METRICS.count("lisa_sent_total", topic, outcome, by=count)


def note_send(topic: str, outcome: str | None, took_s: float) -> None:
    """Counts a send of one message; its outcome is None if it was interrupted."""
    if outcome is not None:
        count_sent(topic, outcome)
    METRICS.observe("lisa_send_seconds", (took_s,))
