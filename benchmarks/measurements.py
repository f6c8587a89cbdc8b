"""The measurements of a part of the suite, and their summary. Pure."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

__all__ = ["Measurement", "Part", "Ratios", "percentile"]


def percentile(values: Iterable[float], share: float) -> float:
    """The smallest value that at least `share` percent of the values do not exceed; raises ValueError for none."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values to take a percentile of")
    return ordered[max(0, math.ceil(len(ordered) * share / 100) - 1)]


@dataclass(frozen=True, slots=True)
class Measurement:
    """One quantity, once per round."""

    unit: str
    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median of the rounds: the value that counts."""
        return statistics.median(self.values)

    @property
    def low(self) -> float:
        """The lowest of the rounds."""
        return min(self.values)

    @property
    def high(self) -> float:
        """The highest of the rounds."""
        return max(self.values)

    def over(self, other: "Measurement") -> float:
        """The ratio to another quantity: the median of the rounds' ratios where both have the same rounds.

        Neighbouring rounds share the other load of the machine; quantities with other rounds are compared by
        their medians.
        """
        if len(self.values) == len(other.values):
            return statistics.median(mine / its for mine, its in zip(self.values, other.values, strict=True))
        return self.median / other.median


@dataclass(slots=True)
class Part:
    """The measurements of one part of the suite, in the order of measuring."""

    name: str
    took_s: float
    about: dict[str, str]
    """Facts that the numbers depend on: server, machine, sizes, date, commit."""
    measurements: dict[str, Measurement]
    notes: dict[str, str]
    """Subject → a note: why it could not be measured, or a fact that belongs to its number."""

    def dump(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {
            "part": self.name,
            "took_s": round(self.took_s, 1),
            "about": self.about,
            "measurements": {
                name: {"unit": m.unit, "median": _rounded(m.median), "rounds": [_rounded(v) for v in m.values]}
                for name, m in self.measurements.items()
            },
            "notes": self.notes,
        }

    @classmethod
    def load(cls, stored: Mapping[str, Any]) -> Self:
        """The part that `dump` gave."""
        measurements = {
            name: Measurement(fields["unit"], tuple(fields["rounds"]))
            for name, fields in stored["measurements"].items()
        }
        return cls(stored["part"], stored["took_s"], stored["about"], measurements, stored["notes"])


class Ratios:
    """Several parts as one; a quantity is named "part: name"."""

    def __init__(self, parts: Iterable[Part]) -> None:
        self.parts = {part.name: part for part in parts}

    def find(self, name: str) -> Measurement:
        """A quantity; raises KeyError where it was not measured."""
        part, _, quantity = name.partition(": ")
        return self.parts[part].measurements[quantity]

    def median(self, name: str) -> float:
        """The median of a quantity."""
        return self.find(name).median

    def ratio(self, name: str, other: str) -> float:
        """One quantity over another; see `Measurement.over`."""
        return self.find(name).over(self.find(other))

    def per_subject(self, part: str, quantity: str) -> dict[str, Measurement]:
        """A quantity of all its subjects, where a part names it "subject, quantity"."""
        found: dict[str, Measurement] = {}
        for name, measurement in self.parts[part].measurements.items():
            subject, _, measured = name.rpartition(", ")
            if subject and measured == quantity:
                found[subject] = measurement
        return found

    def over_yardstick(self, part: str, quantity: str) -> dict[str, float]:
        """Rates of all its subjects, each over the yardstick that was measured beside it."""
        yardsticks = self.per_subject(part, "yardstick")
        rates = self.per_subject(part, quantity)
        return {subject: rate.median / yardsticks[subject].median for subject, rate in rates.items()}


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")


def collect(rows: Sequence[tuple[str, str, float]]) -> dict[str, Measurement]:
    """Measurements of rows (name, unit, value), whose rounds come in the order of the rows."""
    values: dict[str, list[float]] = {}
    units: dict[str, str] = {}
    for name, unit, value in rows:
        values.setdefault(name, []).append(value)
        units[name] = unit
    return {name: Measurement(units[name], tuple(rounds)) for name, rounds in values.items()}
