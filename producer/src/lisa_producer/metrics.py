"""What producers count. `register` starts it, and adds the metrics to a registry of `prometheus_client`."""

from collections import Counter
from collections.abc import Sequence

from lisa_common.errors import InvalidInput
from lisa_common.observing.catalog import OTHER, Program
from lisa_common.observing.gathered import Gathered
from lisa_common.observing.metrics import MetricSet
from lisa_common.validation import check_name

__all__ = ["METRICS", "SENDS", "count_sent", "note_send", "register"]

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


_Send = tuple[str, str | None, float]
"""Topic, outcome, None if it was interrupted, and duration in s."""


def _count_sends(sends: Sequence[_Send]) -> None:
    for (topic, outcome), count in Counter([(topic, outcome) for topic, outcome, _ in sends]).items():
        if outcome is not None:
            count_sent(topic, outcome, count)
    METRICS.observe("lisa_send_seconds", [took_s for _, _, took_s in sends])


SENDS = Gathered(_count_sends)
"""Sends of single messages, in programs with so many that they count them together."""


def note_send(topic: str, outcome: str | None, took_s: float) -> None:
    """Counts a send of one message; its outcome is None if it was interrupted."""
    if SENDS.on:
        SENDS.add((topic, outcome, took_s))
        return
    if outcome is not None:
        count_sent(topic, outcome)
    METRICS.observe("lisa_send_seconds", (took_s,))
