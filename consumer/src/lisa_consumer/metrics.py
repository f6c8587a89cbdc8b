"""What consumers count. `register` starts it, and adds the metrics to a registry of `prometheus_client`."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from operator import itemgetter

from lisa_common.model.delivery import Delivery, Entry
from lisa_common.model.policy import Policy
from lisa_common.observing.catalog import Program
from lisa_common.observing.metrics import MetricSet
from lisa_common.protocol.consuming import AckOutcome, NackOutcome

__all__ = ["METRICS", "HandlerTimes", "count_acks", "count_deliveries", "count_expired", "count_nacks", "register"]

METRICS = MetricSet(Program.CONSUMER)

register = METRICS.register

# By position: by name it takes three times as long.
_attempt_of, _due_ms_of, _entry_of = (
    itemgetter(Delivery._fields.index(name)) for name in ("attempt", "due_ms", "entry")
)
_group_of = itemgetter(Entry._fields.index("group"))

_AT_ONCE = 64
"""Durations of handlers that are gathered before they are counted."""


def count_deliveries(deliveries: Sequence[Delivery], now_ms: int) -> None:
    """Counts deliveries of one topic and group that a read brought, at that time of the server."""
    if not METRICS.on or not deliveries:
        return
    place = deliveries[0].topic, deliveries[0].group
    attempts, groups = list(map(_attempt_of, deliveries)), list(map(_group_of, map(_entry_of, deliveries)))
    first = len(deliveries)
    # Mostly all are. A worker does this for each message, so the loops are in C.
    if attempts.count(1) < first or groups.count(None) < first:
        first = sum(attempt == 1 and group is None for attempt, group in zip(attempts, groups, strict=True))
    METRICS.count("lisa_deliveries_total", *place, "first", by=first)
    METRICS.count("lisa_deliveries_total", *place, "again", by=len(deliveries) - first)
    METRICS.observe_since("lisa_delivery_lag_seconds", now_ms, list(map(_due_ms_of, deliveries)), *place)


def count_acks(outcomes: Sequence[AckOutcome]) -> None:
    """Counts what the server replied to acks."""
    if METRICS.on:
        for outcome, count in Counter(outcomes).items():
            METRICS.count("lisa_settled_total", outcome.value, by=count)


def count_nacks(replies: Sequence[tuple[NackOutcome, int | None]]) -> None:
    """Counts what the server replied to nacks."""
    if METRICS.on:
        for outcome, count in Counter(outcome for outcome, _ in replies).items():
            METRICS.count("lisa_settled_total", outcome.value, by=count)


def count_expired(policy: Policy, count: int) -> None:
    """Counts messages that had expired when they were read."""
    METRICS.count("lisa_settled_total", "garbage" if policy.on_expire == "garbage" else "dropped", by=count)


class HandlerTimes:
    """The durations of a worker's handlers, gathered to be counted together, and how many handlers run."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._times: dict[tuple[str, str], list[float]] = defaultdict(list)
        self._running = 0

    def add(self, topic: str, outcome: str, took_s: Sequence[float]) -> None:
        """Adds the durations of handlers. Call it while metrics are on."""
        times = self._times[topic, outcome]
        times += took_s
        if len(times) >= _AT_ONCE:
            self._flush(topic, outcome)

    def flush(self, running: int) -> None:
        """Counts all durations, and how many handlers run now."""
        for topic, outcome in self._times:
            self._flush(topic, outcome)
        METRICS.count("lisa_handlers_running", by=running - self._running)
        self._running = running if METRICS.on else 0

    def _flush(self, topic: str, outcome: str) -> None:
        times, self._times[topic, outcome] = self._times[topic, outcome], []
        METRICS.observe("lisa_handler_seconds", times, topic, self._group, outcome)
