"""Samples the keys for metrics, in a separate thread and at its own interval, once for all scrapes."""

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from lisa_common.client.connection import Connection
from lisa_common.errors import LisaError
from lisa_common.observing.catalog import HORIZONS, MAX_TOPICS, METRICS, OTHER, Kind
from lisa_common.observing.metrics import printable
from lisa_manager.admin.status import TopicStatus, read_status
from lisa_manager.admin.traffic import TopicTraffic, read_traffic
from lisa_manager.metrics import turn
from lisa_manager.problem_log import ProblemLog
from lisa_manager.settings import ManagerSettings

__all__ = ["Sampler", "families_of"]

logger = logging.getLogger(__name__)

_JOB = "sample"

_SHARE = 10
"""Samples take at most this fraction of a core: one part in so many."""

_KEPT = 3
"""After this many times the interval without a new sample, the last one is no longer exported."""

Values = dict[str, dict[tuple[str, ...], float]]
"""By metric and labels."""


class Sampler(Collector):
    """The metrics that are read from the keys, as a collector for registries. A damaged topic is left out."""

    def __init__(self, settings: ManagerSettings) -> None:
        self._settings = settings
        self._families: Sequence[Family] = ()
        self._sampled_at = 0.0
        self._interval_s = settings.sample_s
        self._ending = threading.Event()
        self._problems = ProblemLog(logger)
        self._damaged: set[str] = set()

    def collect(self) -> Iterable[Family]:
        """The latest sample."""
        fresh = time.monotonic() - self._sampled_at < _KEPT * self._interval_s
        return self._families if fresh else families_of({})

    def describe(self) -> Iterable[Family]:
        """The metrics without values."""
        return families_of({})

    @contextmanager
    def running(self) -> Iterator["Sampler"]:
        """Samples while its block runs."""
        thread = threading.Thread(target=self._run, name="lisa-sampler", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._ending.set()
            # It ends between two round trips, or with the process.
            thread.join(timeout=1)

    def _run(self) -> None:
        with Connection.of(self._settings, name="lisa-manager") as connection:
            while not self._ending.is_set():
                began, used_s = time.monotonic(), time.thread_time()
                try:
                    with turn(_JOB):
                        self._sample(connection)
                except Exception as error:  # noqa: BLE001 - the next sample may succeed
                    self._problems.report(_JOB, error)
                else:
                    self._problems.resolve(_JOB)
                rest_s = max(self._settings.sample_s, _SHARE * (time.thread_time() - used_s))
                self._interval_s = rest_s + time.monotonic() - began
                self._ending.wait(rest_s)

    def _sample(self, connection: Connection) -> None:
        statuses = connection.run(read_status(self._settings.prefix))
        traffic = connection.run(read_traffic(self._settings.prefix))
        damaged = {status.topic for status in statuses if status.damage}
        for status in statuses:
            if status.damage:
                self._problems.report(f"sample of {status.topic}", LisaError(status.damage))
        for topic in self._damaged - damaged:
            self._problems.resolve(f"sample of {topic}")
        self._damaged = damaged
        self._families = families_of(_values(statuses, traffic))
        self._sampled_at = time.monotonic()


def _values(statuses: Sequence[TopicStatus], traffic: Sequence[TopicTraffic]) -> Values:
    """The values of all metrics. Managers agree on which topics are beyond the limit: the last ones by name."""
    values: Values = defaultdict(lambda: defaultdict(float))
    own = {status.topic for status in statuses[:MAX_TOPICS]}
    for status in statuses:
        if not status.damage:
            _add_status(values, status.topic if status.topic in own else OTHER, status)
    for each in traffic:
        topic = each.topic if each.topic in own else OTHER
        values["lisa_ready_entries_total"][topic,] += each.added
        for group, count in each.read.items():
            values["lisa_read_entries_total"][topic, group] += count
    return values


def _add_status(values: Values, topic: str, status: TopicStatus) -> None:
    messages = values["lisa_messages"]
    for state in ("waiting", "retry", "garbage"):
        messages[topic, "", state] += getattr(status, state)
    if not status.groups:
        messages[topic, "", "ready"] += status.ready
    for group in status.groups:
        messages[topic, group.group, "ready"] += group.ready
        messages[topic, group.group, "delivered"] += group.delivered
    oldest = values["lisa_oldest_due_seconds"]
    oldest[topic,] = max(oldest[topic,], status.late_ms / 1000)
    for horizon, count in zip(HORIZONS, status.due_in, strict=True):
        values["lisa_waiting_due_in"][topic, horizon] += count


def families_of(values: Values) -> list[Family]:
    """The sampled metrics of the catalog, with these values."""
    families: list[Family] = []
    for metric in METRICS:
        if metric.sampled:
            kind = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
            family = kind(metric.name, metric.help, labels=metric.labels)
            for labels, value in values.get(metric.name, {}).items():
                family.add_metric([*map(printable, labels)], value)
            families.append(family)
    return families
