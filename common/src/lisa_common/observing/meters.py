"""Metrics by the OpenTelemetry API, by its semantic conventions for messaging, version 1.44: those that they name.

They are counted where the metrics for Prometheus are. Needs the extra `otel`; see `ask`.
"""

import os
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any, Final, NamedTuple

from lisa_common.observing.catalog import METRICS, Kind

__all__ = ["Meters", "ask"]

_SCHEMA = "https://opentelemetry.io/schemas/1.44.0"

_ERROR = "error.type"
_OPERATIONS = ("messaging.operation.name", "messaging.operation.type")


class _Instrument(NamedTuple):
    """What one metric of the catalog is by the conventions; `labels` names its labels, "" for one that is left out."""

    name: str
    unit: str
    operation: str
    labels: tuple[str, ...]
    description: str


_PLACE = ("messaging.destination.name", "messaging.consumer.group.name")

_INSTRUMENTS: Final = {
    "lisa_sent_total": _Instrument(
        "messaging.client.sent.messages", "{message}", "send", (_PLACE[0], _ERROR), "Messages of sends."
    ),
    "lisa_send_seconds": _Instrument(
        "messaging.client.operation.duration", "s", "send", (), "Duration of a send, or of one batch."
    ),
    "lisa_deliveries_total": _Instrument(
        "messaging.client.consumed.messages", "{message}", "receive", (*_PLACE, ""), "Delivered messages."
    ),
    "lisa_handler_seconds": _Instrument(
        "messaging.process.duration", "s", "process", (*_PLACE, _ERROR), "Duration of a handler."
    ),
}
"""By the name of the metric in the catalog."""

_NO_ERRORS = frozenset(("ok", "sent", "duplicate"))
"""Outcomes that are no `error.type`."""


def ask() -> "Meters | None":
    """Meters, if a meter provider is set up now. Costs next to nothing if the program does not use OpenTelemetry."""
    if "opentelemetry.metrics" not in sys.modules and "OTEL_PYTHON_METER_PROVIDER" not in os.environ:
        return None
    try:
        from opentelemetry import metrics  # noqa: PLC0415 - an extra
    except ModuleNotFoundError:
        return None
    provider = metrics.get_meter_provider()
    # The API's own providers do nothing, and their types are private.
    if type(provider).__module__.startswith("opentelemetry.metrics"):
        return None
    return Meters(provider.get_meter("lisa", version("lisa-common"), schema_url=_SCHEMA))


class Meters:
    """The instruments of the conventions, made when they are first used."""

    def __init__(self, meter: Any) -> None:
        self._meter = meter
        self._instruments: dict[str, Any] = {}

    def child(self, name: str, labels: Sequence[str]) -> "MeterChild | None":
        """A metric of the catalog with the values of its labels; None if the conventions do not have it."""
        known = _INSTRUMENTS.get(name)
        if known is None:
            return None
        values = dict(zip(known.labels, labels, strict=True))
        if values.get(_ERROR) in _NO_ERRORS:
            del values[_ERROR]
        values.pop("", None)
        attributes = {"messaging.system": "lisa", **dict.fromkeys(_OPERATIONS, known.operation), **values}
        if name not in self._instruments:
            self._instruments[name] = self._instrument(name, known)
        return MeterChild(self._instruments[name], attributes)

    def _instrument(self, name: str, known: _Instrument) -> Any:
        metric = next(metric for metric in METRICS if metric.name == name)
        if metric.kind is Kind.COUNTER:
            return self._meter.create_counter(known.name, known.unit, known.description).add
        return self._meter.create_histogram(
            known.name, known.unit, known.description, explicit_bucket_boundaries_advisory=metric.buckets
        ).record


class MeterChild:
    """One instrument with its attributes; used like a metric of `prometheus_client`."""

    def __init__(self, take: Callable[[float, dict[str, str]], None], attributes: dict[str, str]) -> None:
        self._take = take
        self._attributes = attributes

    def inc(self, by: float) -> None:
        """Adds to a counter."""
        self._take(by, self._attributes)

    def observe_many(self, amounts: Sequence[float]) -> None:
        """Adds amounts to a histogram."""
        for amount in amounts:
            self._take(amount, self._attributes)

    def exemplify(self, amount: float, trace_id: str) -> None:
        """Nothing: the SDK finds examples by itself."""
