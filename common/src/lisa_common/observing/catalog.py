"""Every metric of Lisa: name, kind, labels, meaning. Programs export these and no others.

docs/observability.md lists them. A label `topic` has at most `MAX_TOPICS` values; further topics share `OTHER`.
"""

from enum import StrEnum
from typing import Final, NamedTuple

__all__ = ["HORIZONS", "JOBS", "MAX_TOPICS", "METRICS", "OTHER", "STATES", "Kind", "Metric", "Program", "metrics_of"]

MAX_TOPICS: Final = 1_000
"""Most topics with series of their own."""

OTHER: Final = "other"
"""The value of the label `topic` for all topics beyond the limit."""

STATES: Final = ("waiting", "ready", "delivered", "retry", "garbage")
"""Values of the label `state`."""

HORIZONS: Final = ("1m", "10m", "30m", "1h", "6h", "1d", "7d", "30d", "beyond")
"""Values of the label `horizon`: a waiting message counts under the first that its due time lies within."""


JOBS: Final = (
    *("promote", "reclaim", "trim", "sweep", "dead-letter", "discover", "drain", "expire-idle", "limits", "slots"),
    *("patterns", "reshards"),
    *("scripts", "tick", "report", "presence", "history", "gauges", "sample"),
)
"""Values of the label `job`."""


class Kind(StrEnum):
    """Prometheus' types."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Program(StrEnum):
    """Who exports a metric."""

    PRODUCER = "producer"
    CONSUMER = "consumer"
    MANAGER = "manager"
    GATEWAY = "gateway"


class Metric(NamedTuple):
    """One metric. The name of a counter ends in `_total`."""

    name: str
    kind: Kind
    programs: tuple[Program, ...]
    labels: tuple[str, ...]
    help: str
    buckets: tuple[float, ...] = ()
    """Upper bounds of a histogram, in seconds, without infinity."""
    values: tuple[str, ...] = ()
    """Values of the only label that are known beforehand: their series exist from the start."""
    sampled: bool = False
    """Whether a program reads it from what is stored; programs count the other metrics as they work."""


_LAGS = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)
"""1 ms to 1 h: from an idle system to an outage."""

_DURATIONS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
"""The bounds that OpenTelemetry advises for durations of messaging, and 1 ms: most operations take less than 5 ms."""

_HANDLING = (*_DURATIONS, 30, 60, 300)

_PRODUCER, _CONSUMER, _MANAGER = (Program.PRODUCER,), (Program.CONSUMER,), (Program.MANAGER,)
_GATEWAY = (Program.GATEWAY,)
_GROUPED = ("topic", "group")


def _sampled(name: str, kind: Kind, programs: tuple[Program, ...], labels: tuple[str, ...], help: str) -> Metric:  # noqa: A002 - as in Metric
    return Metric(name, kind, programs, labels, help, sampled=True)


METRICS: Final = (
    # Sampled from the keys. All managers export the same values: take the maximum, never the sum.
    _sampled(
        *("lisa_messages", Kind.GAUGE, _MANAGER, ("topic", "group", "state")),
        "Messages by state. Copies of ready and delivered messages count for each group; other states have no group.",
    ),
    _sampled(
        *("lisa_oldest_due_seconds", Kind.GAUGE, _MANAGER, ("topic",)),
        "Time since the due time of the oldest message that no consumer has read; 0 if there is none.",
    ),
    _sampled(
        *("lisa_group_oldest_due_seconds", Kind.GAUGE, _MANAGER, _GROUPED),
        "Time since the due time of the oldest message that the group has not read; of messages that are not ready, "
        "and of topics without a group, for an empty group.",
    ),
    _sampled(
        *("lisa_consumers", Kind.GAUGE, _MANAGER, _GROUPED),
        "Consumers of the group. Workers deregister when they end; killed ones and others are removed once idle.",
    ),
    _sampled(
        *("lisa_waiting_due_in", Kind.GAUGE, _MANAGER, ("topic", "horizon")),
        "Waiting messages by due time: within the horizon, and not within a nearer one.",
    ),
    _sampled(
        *("lisa_ready_entries_total", Kind.COUNTER, _MANAGER, ("topic",)),
        "Entries that were ever added to the ready streams, as the server counts them.",
    ),
    _sampled(
        *("lisa_read_entries_total", Kind.COUNTER, _MANAGER, _GROUPED),
        "Entries of the ready streams that the group has read or passed, as the server counts them.",
    ),
    _sampled(
        *("lisa_garbage_oldest_seconds", Kind.GAUGE, _MANAGER, ("topic",)),
        "Age of the oldest message in garbage. Only of topics that have garbage, and no dead letter topic.",
    ),
    _sampled(
        *("lisa_garbage_removal_in_seconds", Kind.GAUGE, _MANAGER, ("topic",)),
        "Time until the oldest message in garbage is removed by garbage_retention_ms. Of the same topics.",
    ),
    # Alerts of lateness leave paused topics out.
    _sampled(
        *("lisa_topic_paused", Kind.GAUGE, _MANAGER, ("topic",)),
        "1 for a topic that is paused; others have no value.",
    ),
    _sampled(
        *("lisa_parked_messages", Kind.GAUGE, _MANAGER, ("topic",)),
        "Messages and retries that are due once others of their key are done. Only of topics with limits.",
    ),
    # What this manager did.
    Metric(
        *("lisa_promotion_lag_seconds", Kind.HISTOGRAM, _MANAGER, ("topic",)),
        "Time from the due time of a message or retry until it was ready.",
        _LAGS,
    ),
    Metric("lisa_promoted_total", Kind.COUNTER, _MANAGER, (), "Messages and retries that this manager made ready."),
    Metric(
        *("lisa_reclaimed_total", Kind.COUNTER, _MANAGER, ("outcome",)),
        "Deliveries that this manager reclaimed because their leases had ended, by outcome: retry, garbage, "
        "unbegun (ready again) or gone.",
        values=("retry", "garbage", "unbegun", "gone"),
    ),
    Metric("lisa_expired_total", Kind.COUNTER, _MANAGER, (), "Expired messages that this manager found."),
    Metric(
        *("lisa_garbage_total", Kind.COUNTER, _MANAGER, ("reason",)),
        "Copies that this manager made garbage: abandoned or expired. Consumers count theirs as settled.",
        values=("abandoned", "expired"),
    ),
    Metric(
        *("lisa_garbage_removed_total", Kind.COUNTER, _MANAGER, ()),
        "Copies in garbage that this manager removed for good, by garbage_retention_ms or garbage_max_messages.",
    ),
    Metric(
        *("lisa_dead_letters_moved_total", Kind.COUNTER, _MANAGER, ("topic",)),
        "Dead letters that this manager moved from the topic to its dead letter topic.",
    ),
    Metric(
        *("lisa_manager_turn_seconds", Kind.HISTOGRAM, _MANAGER, ("job",)),
        "Duration of a turn of a job that did not fail.",
        _DURATIONS,
    ),
    Metric(
        *("lisa_manager_errors_total", Kind.COUNTER, _MANAGER, ("job",)),
        "Turns of a job that failed, and shards at which it failed.",
        values=JOBS,
    ),
    Metric(
        *("lisa_manager_last_turn_timestamp_seconds", Kind.GAUGE, _MANAGER, ("job",)),
        "When a job last ended a turn without an error, in seconds since 1970.",
    ),
    Metric(
        *("lisa_schedule_next_timestamp_seconds", Kind.GAUGE, _MANAGER, ("topic", "schedule")),
        "When the schedule has its next tick, in seconds since 1970.",
    ),
    Metric(
        *("lisa_schedule_ticks_total", Kind.COUNTER, _MANAGER, ("topic", "schedule", "outcome")),
        "Ticks of a schedule that this manager sent, or left out as missed or because an earlier one was not done.",
    ),
    # What a producer did.
    Metric(
        *("lisa_sent_total", Kind.COUNTER, _PRODUCER, ("topic", "outcome")),
        "Messages of sends that ended, by outcome: sent, replaced, duplicate or failed.",
    ),
    Metric(
        *("lisa_send_seconds", Kind.HISTOGRAM, _PRODUCER, ()),
        "Duration of a send, or of one batch of many messages, until its result or error.",
        _DURATIONS,
    ),
    # Sampled from the table of an outbox. All relays of a database export the same values.
    _sampled(
        *("lisa_outbox_rows", Kind.GAUGE, _PRODUCER, ("state",)),
        "Rows of the outbox that wait for a relay (waiting), or that Lisa has refused for good (set_aside).",
    ),
    _sampled(
        *("lisa_outbox_oldest_seconds", Kind.GAUGE, _PRODUCER, ()),
        "Age of the oldest row that waits for a relay; 0 if there is none.",
    ),
    # What a consumer did.
    Metric(
        *("lisa_delivery_lag_seconds", Kind.HISTOGRAM, _CONSUMER, _GROUPED),
        "Time from the due time of a message or retry until this consumer received it.",
        _LAGS,
    ),
    Metric(
        *("lisa_deliveries_total", Kind.COUNTER, _CONSUMER, (*_GROUPED, "attempt")),
        "Deliveries that this consumer received: the first of a message in its group, or another one (again).",
    ),
    Metric(
        *("lisa_settled_total", Kind.COUNTER, _CONSUMER, ("outcome",)),
        "Settled deliveries by outcome: acked, late, stale, retry, garbage, released, dropped or gone; of those that a "
        "message follows also duplicate, cancelled, owed, full or resharded.",
        values=("acked", "late", "stale", "retry", "garbage", "released"),
    ),
    Metric(
        *("lisa_handler_seconds", Kind.HISTOGRAM, _CONSUMER, (*_GROUPED, "outcome")),
        "Duration of a handler, by outcome: ok, failed, rejected, limited, cancelled or aborted.",
        _HANDLING,
    ),
    Metric("lisa_handlers_running", Kind.GAUGE, _CONSUMER, (), "Handlers that run now."),
    Metric(
        *("lisa_handler_overruns_total", Kind.COUNTER, _CONSUMER, _GROUPED),
        "Handlers that still ran after their timeout, as a plain function in a thread cannot be cancelled.",
    ),
    Metric(
        *("lisa_leases_lost_total", Kind.COUNTER, _CONSUMER, ()),
        "Deliveries that this consumer lost before it had handled them, as their leases had ended.",
    ),
    # What a gateway or a pusher did.
    Metric(
        *("lisa_http_requests_total", Kind.COUNTER, _GATEWAY, ("route", "method", "status")),
        "Requests by route (a path as documented, other or refused) and status (none: the client hung up first).",
    ),
    Metric(
        *("lisa_http_request_seconds", Kind.HISTOGRAM, _GATEWAY, ("route",)),
        "Duration of a request until its answer was passed on, the wait of a long poll included.",
        _HANDLING,
    ),
    Metric("lisa_http_polls", Kind.GAUGE, _GATEWAY, (), "Long polls that wait now."),
    Metric(
        *("lisa_http_loop_lag_seconds", Kind.GAUGE, _GATEWAY, ()),
        "The longest time in the last 15 to 30 s for which the gateway's event loop kept its requests waiting.",
    ),
    Metric(
        *("lisa_http_stale_acks_total", Kind.COUNTER, _GATEWAY, ()),
        "Acks by id of messages that no client held, or no longer.",
    ),
    Metric(
        *("lisa_push_requests_total", Kind.COUNTER, _GATEWAY, ("topic", "status")),
        "Requests to receivers of pushed messages, by the status of the answer; none without an answer.",
    ),
    Metric(
        *("lisa_push_seconds", Kind.HISTOGRAM, _GATEWAY, ("topic",)),
        "Duration of a request to a receiver.",
        _HANDLING,
    ),
    # Of all programs.
    Metric("lisa_build_info", Kind.GAUGE, tuple(Program), ("version",), "The release of Lisa that runs; always 1."),
)


def metrics_of(program: Program) -> dict[str, Metric]:
    """The metrics of a program, by name."""
    return {metric.name: metric for metric in METRICS if program in metric.programs}
