"""The printed report of a run. Pure."""

from collections.abc import Iterable, Sequence

from benchmarks.measurements import Measurement, Part
from benchmarks.targets import Verdict

__all__ = ["figure", "parts_text", "verdicts_text"]

_HOLDS = {True: "holds", False: "MISSED", None: "not measured"}


def figure(value: float) -> str:
    """A number with three significant digits, and all digits before the point."""
    if value and abs(value) < 100:  # noqa: PLR2004
        return f"{value:.3g}"
    return f"{value:,.0f}"


def parts_text(parts: Iterable[Part]) -> str:
    """Every quantity of every part: the median of its rounds, and their spread."""
    lines = []
    for part in parts:
        about = ", ".join(f"{key} {value}" for key, value in part.about.items())
        lines += ["", f"{part.name}  ({part.took_s:.0f} s; {about})"]
        lines += [_line(name, measurement) for name, measurement in part.measurements.items()]
        lines += [f"  {subject}: {note}" for subject, note in part.notes.items()]
    return "\n".join(lines)


def _line(name: str, measurement: Measurement) -> str:
    spread = ""
    if len(measurement.values) > 1:
        spread = f"{figure(measurement.low)} to {figure(measurement.high)} in {len(measurement.values)}"
    return f"  {name:<46}{figure(measurement.median):>12} {measurement.unit:<13}{spread}"


def verdicts_text(verdicts: Sequence[Verdict]) -> str:
    """Every target with its measured value and whether it holds."""
    lines = ["", f"{'target':<58}{'limit':>14}{'measured':>12}"]
    for verdict in verdicts:
        target = verdict.target
        limit = f"{'≥' if target.sense == '>=' else '≤'} {figure(target.limit)} {target.unit}"
        value = "-" if verdict.value is None else figure(verdict.value)
        lines.append(f"{target.what:<58}{limit:>14}{value:>12}  {_HOLDS[verdict.holds]}")
    return "\n".join(lines)
