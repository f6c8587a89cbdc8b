"""The metrics of a program in one process. They count nothing, at next to no cost, until they are asked for.

Two may ask: a registry of `prometheus_client`, and a meter provider of OpenTelemetry.
"""

import threading
from collections.abc import Sequence
from typing import Any

from lisa_common.errors import LisaError
from lisa_common.observing import meters
from lisa_common.observing.catalog import MAX_TOPICS, OTHER, Program, metrics_of

__all__ = ["MetricSet", "MissingExtra", "printable"]


class MissingExtra(LisaError):
    """The packages of a requested feature are not installed."""

    def __init__(self, feature: str, distribution: str, extra: str) -> None:
        super().__init__(f"{feature} needs more packages: pip install '{distribution}[{extra}]'")


class MetricSet:
    """The metrics of one program, shared by all of its clients in the process.

    Callers name a metric of the catalog and the values of its labels, in order. Counts of many messages are one call.
    """

    def __init__(self, program: Program) -> None:
        self.on = False
        """Whether anything is asked for. Check it before work that only metrics need."""
        self._program = program
        self._families: dict[str, Any] = {}
        self._meters: meters.Meters | None = None
        self._children: dict[tuple[str, ...], Any] = {}
        self._topics: set[str] = set()
        self._lock = threading.Lock()

    def register(self, registry: Any = None) -> None:
        """Counts from now on, and adds the metrics to a `prometheus_client` registry, the default one if None.

        A registry that has them already is left as it is. Raises MissingExtra without the package.
        """
        try:
            from lisa_common.observing.prometheus import add_families  # noqa: PLC0415 - an extra
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "prometheus_client":
                raise
            raise MissingExtra("a registry of metrics", f"lisa-{self._program}", "metrics") from None
        with self._lock:
            self._families = add_families([m for m in metrics_of(self._program).values() if not m.sampled], registry)
            self._children = {}
        self.on = True

    def ask(self) -> None:
        """Counts by OpenTelemetry from now on, if a meter provider is set up. Clients ask when they are made."""
        if self._meters is None and (found := meters.ask()):
            with self._lock:
                self._meters, self._children = found, {}
            self.on = True

    def count(self, name: str, *labels: str, by: float = 1) -> None:
        """Adds to a counter or gauge."""
        if self.on and by:
            self._child(name, labels).inc(by)

    def set(self, name: str, value: float, *labels: str) -> None:
        """Sets a gauge."""
        if self.on:
            self._child(name, labels).set(value)

    def remove(self, name: str, *labels: str) -> None:
        """Removes a series, as what it is about no longer exists."""
        if self.on and self._children.pop((name, *labels), None) is not None:
            self._families[name].remove(*map(printable, labels))

    def observe(self, name: str, amounts: Sequence[float], *labels: str) -> None:
        """Adds amounts to a histogram, all at once."""
        if self.on and amounts:
            self._child(name, labels).observe_many(amounts)

    def observe_since(self, name: str, now_ms: int, dues_ms: Sequence[int], *labels: str) -> None:
        """Adds to a histogram how long ago each of these times was; a future time counts as now."""
        if self.on:
            self.observe(name, [max(0, now_ms - due_ms) / 1000 for due_ms in dues_ms], *labels)

    def exemplify(self, name: str, amount: float, trace_id: str, *labels: str) -> None:
        """Makes a trace the example of an amount that is or will be observed."""
        if self.on:
            self._child(name, labels).exemplify(amount, trace_id)

    def _child(self, name: str, labels: tuple[str, ...]) -> Any:
        child = self._children.get((name, *labels))
        return child or self._new_child(name, labels)

    def _new_child(self, name: str, labels: tuple[str, ...]) -> Any:
        metric = metrics_of(self._program)[name]
        key = (name, *labels)
        if "topic" in metric.labels and not self._is_known(labels[0]):
            labels = (OTHER, *labels[1:])
            # Names beyond the limit are not kept: there may be any number of them.
            key = (name, *labels)
        # `register` and `ask` replace them, at any time.
        children = self._children
        if key not in children:
            children[key] = self._made(name, [*map(printable, labels)])
        return children[key]

    def _made(self, name: str, labels: Sequence[str]) -> Any:
        children: list[Any] = []
        if family := self._families.get(name):
            children.append(family.labels(*labels) if labels else family)
        if self._meters and (child := self._meters.child(name, labels)):
            children.append(child)
        return children[0] if len(children) == 1 else _Several(children)

    def _is_known(self, topic: str) -> bool:
        with self._lock:
            if topic not in self._topics and len(self._topics) < MAX_TOPICS:
                self._topics.add(topic)
            return topic in self._topics


class _Several:
    """Several metrics, or none, that count the same."""

    def __init__(self, children: Sequence[Any]) -> None:
        self._children = children

    def __getattr__(self, name: str) -> Any:
        def each(*args: Any) -> None:
            for child in self._children:
                getattr(child, name)(*args)

        setattr(self, name, each)
        return each


def printable(label: str) -> str:
    """A label that UTF-8 can encode: stored names may be any bytes."""
    return label.encode("utf-8", "backslashreplace").decode()
