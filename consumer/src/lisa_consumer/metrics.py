"""What consumers count. `register` starts it, and adds the metrics to a registry of `prometheus_client`."""

from collections import Counter
from collections.abc import Sequence

from lisa_common.model.delivery import Delivery
from lisa_common.model.policy import Policy
from lisa_common.observing.catalog import Program
from lisa_common.observing.metrics import MetricSet
from lisa_common.protocol.consuming import AckOutcome, NackOutcome

__all__ = ["METRICS", "count_acks", "count_deliveries", "count_expired", "count_nacks", "register"]

METRICS = MetricSet(Program.CONSUMER)

register = METRICS.register


def count_deliveries(deliveries: Sequence[Delivery], now_ms: int) -> None:
    """Counts deliveries of one topic and group that a read brought, at that time of the server."""
    if not METRICS.on or not deliveries:
        return
    place = deliveries[0].topic, deliveries[0].group
    first = sum(delivery.attempt == 1 and delivery.entry.group is None for delivery in deliveries)
    METRICS.count("lisa_deliveries_total", *place, "first", by=first)
    METRICS.count("lisa_deliveries_total", *place, "again", by=len(deliveries) - first)
    METRICS.observe_since("lisa_delivery_lag_seconds", now_ms, [delivery.due_ms for delivery in deliveries], *place)


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
