"""The catalog as metrics of `prometheus_client`. Needs the extra `metrics`."""

import threading
import time
from bisect import bisect_left
from collections import Counter as Tally
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal
from weakref import WeakKeyDictionary

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric as Family, values
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar, Sample

from lisa_common.observing.catalog import Kind, Metric, Program, metrics_of
from lisa_common.observing.metrics import printable

__all__ = ["Values", "add_families", "collected_from", "default", "families_of", "forget_gauges", "share_by"]

Values = dict[str, dict[tuple[str, ...], float]]
"""By metric and labels."""

_lock = threading.Lock()
_families: dict[str, Any] = {}
"""All families of this process, by name: metrics of one name exist once, in any number of registries."""

_registered: "WeakKeyDictionary[CollectorRegistry, set[str]]" = WeakKeyDictionary()


class _BatchHistogram(Histogram):
    """A histogram that takes many amounts at little more than the cost of one."""

    def observe_many(self, amounts: Sequence[float]) -> None:
        """As `observe` with each amount."""
        bounds = self._upper_bounds
        for at, count in Tally([bisect_left(bounds, amount) for amount in amounts]).items():
            self._buckets[at].inc(count)
        self._sum.inc(sum(amounts))

    def exemplify(self, amount: float, trace_id: str) -> None:
        """Sets the exemplar of the bucket of an amount, which is counted elsewhere."""
        exemplar = Exemplar({"trace_id": trace_id}, amount, time.time())
        self._buckets[bisect_left(self._upper_bounds, amount)].set_exemplar(exemplar)


def add_families(metrics: Sequence[Metric], registry: CollectorRegistry | None) -> dict[str, Any]:
    """Returns the families of these metrics; adds missing ones to the registry, the default one if None."""
    target = prometheus_client.REGISTRY if registry is None else registry
    with _lock:
        present = _registered.setdefault(target, set())
        for metric in metrics:
            if metric.name not in _families:
                _families[metric.name] = _family(metric)
                for value in metric.values:
                    _families[metric.name].labels(value)
            if metric.name not in present:
                target.register(_families[metric.name])
                present.add(metric.name)
        _families["lisa_build_info"].labels(version("lisa-common")).set(1)
        return {metric.name: _families[metric.name] for metric in metrics}


def _family(metric: Metric) -> Any:
    if metric.kind is Kind.HISTOGRAM:
        return _BatchHistogram(metric.name, metric.help, metric.labels, buckets=metric.buckets, registry=None)
    if metric.kind is Kind.COUNTER:
        return Counter(metric.name, metric.help, metric.labels, registry=None)
    # How the gauges of several processes become one.
    mode: Literal["max", "livesum"] = "max" if metric.name == "lisa_build_info" else "livesum"
    return Gauge(metric.name, metric.help, metric.labels, registry=None, multiprocess_mode=mode)


def default() -> CollectorRegistry:
    """The default registry, for a program that serves it."""
    # Creation times would double the number of series, and say only when this process first counted.
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
    return prometheus_client.REGISTRY


def families_of(program: Program, values: Values) -> list[Family]:
    """Returns the sampled metrics of a program, with these values."""
    families: list[Family] = []
    for metric in metrics_of(program).values():
        if metric.sampled:
            kind = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
            family = kind(metric.name, metric.help, labels=metric.labels)
            for labels, value in values.get(metric.name, {}).items():
                family.add_metric([*map(printable, labels)], value)
            families.append(family)
    return families


# Several processes share a directory. Each has a number, which its replacement takes over: so nothing that a killed
# process has counted is lost, and the directory does not grow with each replacement.


def share_by(number: int) -> None:
    """Keeps all metrics of this process, the user's as well, in the shared directory from now on."""

    def identify() -> int:
        return number

    values.ValueClass = values.MultiProcessValue(identify)  # type: ignore[no-untyped-call]


def collected_from(directory: str) -> CollectorRegistry:
    """The registry of the process that serves the metrics of all processes which share a directory."""
    default()
    registry = CollectorRegistry()
    prometheus_client.ProcessCollector(registry=registry)
    registry.register(_SharedCollector(directory))
    return registry


class _SharedCollector(Collector):
    """Collects what all processes have written so far, each at its own moment."""

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory)

    def collect(self) -> Iterator[Family]:
        """The families. Leaves out files and histograms that a process has not finished making."""
        files = [str(file) for file in self._directory.glob("*.db") if _has_begun(file)]
        merged: Iterable[Family] = MultiProcessCollector.merge(files)  # type: ignore[no-untyped-call]
        for family in merged:
            if family.type == "histogram":
                family.samples = _finished(family.samples)
            if family.samples:
                yield family


def _has_begun(file: Path) -> bool:
    try:
        return file.stat().st_size > 0
    except FileNotFoundError:
        # The gauges of a process that has just ended.
        return False


def _finished(samples: list[Sample]) -> list[Sample]:
    """Samples of the histograms that have all their buckets, histogram by histogram, as OpenMetrics wants them.

    A process writes bucket by bucket when it first uses labels, `+Inf` last, and counts afterwards. So what has no such
    bucket has counted nothing. Versions of `prometheus_client` before 0.24 give the sums of all histograms first.
    """
    histograms: dict[frozenset[tuple[str, str]], list[Sample]] = {}
    for sample in samples:
        histograms.setdefault(_histogram_of(sample), []).append(sample)
    return [
        sample
        for histogram in histograms.values()
        if any(each.labels.get("le") == "+Inf" for each in histogram)
        for sample in histogram
    ]


def _histogram_of(sample: Sample) -> frozenset[tuple[str, str]]:
    """The labels of the histogram that a sample belongs to."""
    return frozenset((name, value) for name, value in sample.labels.items() if name != "le")


def forget_gauges(directory: str, number: int) -> None:
    """Removes the gauges of a process that has ended; its counters stay."""
    mark_process_dead(number, path=directory)  # type: ignore[no-untyped-call]
