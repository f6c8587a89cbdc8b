"""Samples the keys for metrics, in a separate thread and at its own interval, once for all scrapes."""

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set as AbstractSet
from contextlib import contextmanager

from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from lisa_common.client.connection import Connection
from lisa_common.errors import OF_THE_SERVER, LisaError
from lisa_common.model.sharding import Layout
from lisa_common.observing.catalog import HORIZONS, MAX_TOPICS, OTHER, Program
from lisa_common.observing.prometheus import Values, families_of
from lisa_manager.admin.topics.status import TopicStatus, read_status_of
from lisa_manager.admin.topics.traffic import TopicTraffic, read_traffic_of
from lisa_manager.metrics import METRICS, turn
from lisa_manager.problem_log import ProblemLog
from lisa_manager.queries import list_layouts
from lisa_manager.settings import ManagerSettings

__all__ = ["Sampler"]

logger = logging.getLogger(__name__)

_JOB = "sample"

_SHARE = 10
"""Samples take at most this fraction of a core: one part in so many."""

_KEPT = 3
"""After this many times the interval without a new sample, the last one is no longer exported."""

_NAMED = 20
"""Most topics that are logged because they cannot be read: a node that is away may have thousands."""

_PATIENCE_S = 1.0
"""Where a node of a Cluster is away, calls that any node may serve go to another one within this time."""


class Sampler(Collector):
    """The metrics that are read from the keys, as a collector for registries. A damaged topic is left out."""

    def __init__(self, settings: ManagerSettings) -> None:
        self._settings = settings
        self._families: Sequence[Family] = ()
        self._sampled_at = 0.0
        self._interval_s = settings.sample_s
        self._ending = threading.Event()
        self._problems = ProblemLog(logger)
        self._layouts: Sequence[Layout] = ()
        self._failing: set[str] = set()

    def collect(self) -> Iterable[Family]:
        """The latest sample."""
        fresh = time.monotonic() - self._sampled_at < _KEPT * self._interval_s
        return self._families if fresh else families_of(Program.MANAGER, {})

    def describe(self) -> Iterable[Family]:
        """The metrics without values."""
        return families_of(Program.MANAGER, {})

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
                # The next sample may succeed.
                with self._problems.watching(_JOB), turn(_JOB):
                    self._sample(connection)
                rest_s = max(self._settings.sample_s, _SHARE * (time.thread_time() - used_s))
                self._interval_s = rest_s + time.monotonic() - began
                self._ending.wait(rest_s)

    def _sample(self, connection: Connection) -> None:
        self._read_layouts(connection)
        statuses = connection.run(read_status_of(self._layouts, partial=True), patience_s=_PATIENCE_S)
        traffic = connection.run(read_traffic_of(self._layouts, partial=True), patience_s=_PATIENCE_S)
        damage = {each.topic: each.damage for each in traffic if each.damage}
        damage |= {status.topic: status.damage for status in statuses if status.damage}
        METRICS.count("lisa_manager_errors_total", _JOB, by=len(damage))
        self._report(damage)
        # A sum over some of its shards would be taken for the whole topic, and a counter that falls for a restart.
        self._families = families_of(
            Program.MANAGER,
            _values(
                [status for status in statuses if status.topic not in damage],
                [each for each in traffic if each.topic not in damage],
                own={layout.topic for layout in self._layouts[:MAX_TOPICS]},
            ),
        )
        self._sampled_at = time.monotonic()

    def _read_layouts(self, connection: Connection) -> None:
        """Reads the registry; while its node of a Cluster is away, the topics stay as they were."""
        subject = "the topics for samples"
        try:
            self._layouts = connection.run(list_layouts(self._settings.prefix), patience_s=_PATIENCE_S)
        except OF_THE_SERVER as error:
            if not self._layouts:
                raise
            METRICS.count("lisa_manager_errors_total", _JOB)
            self._problems.report(subject, error)
        else:
            self._problems.resolve(subject)

    def _report(self, damage: Mapping[str, str]) -> None:
        named = {f"sample of {topic}": text for topic, text in sorted(damage.items())[:_NAMED]}
        if len(damage) > _NAMED:
            named["sample of more topics"] = "lisa-manager status and check say why"
        for subject, text in named.items():
            self._problems.report(subject, LisaError(text))
        for subject in self._failing - named.keys():
            self._problems.resolve(subject)
        self._failing = set(named)


def _values(statuses: Sequence[TopicStatus], traffic: Sequence[TopicTraffic], own: AbstractSet[str]) -> Values:
    """The values of all metrics. Topics that are not in `own` share a label."""
    values: Values = defaultdict(lambda: defaultdict(float))
    for status in statuses:
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
    of_group, consumers = values["lisa_group_oldest_due_seconds"], values["lisa_consumers"]
    for name, late_ms in status.group_late_ms.items():
        of_group[topic, name] = max(of_group[topic, name], late_ms / 1000)
    for group in status.groups:
        consumers[topic, group.group] += group.consumers
    for horizon, count in zip(HORIZONS, status.due_in, strict=True):
        values["lisa_waiting_due_in"][topic, horizon] += count
    if status.paused:
        values["lisa_topic_paused"][topic,] = 1
    if status.limits or status.parked:
        values["lisa_parked_messages"][topic,] += status.parked
    if status.garbage and not status.dead_letter_topic:
        _add_garbage_age(values, topic, status)


def _add_garbage_age(values: Values, topic: str, status: TopicStatus) -> None:
    """Both values of a label are of the topic whose garbage is removed next."""
    removal_in, age = values["lisa_garbage_removal_in_seconds"], values["lisa_garbage_oldest_seconds"]
    left_s = max(0, status.garbage_retention_ms - status.oldest_garbage_ms) / 1000
    if left_s <= removal_in.get((topic,), left_s):
        removal_in[topic,], age[topic,] = left_s, status.oldest_garbage_ms / 1000
