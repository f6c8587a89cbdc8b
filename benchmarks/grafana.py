"""Draws panels of the Grafana dashboard with real data: its queries, answered by a Prometheus that scrapes a demo.

`PYTHONPATH=tests python -m benchmarks.grafana docs/grafana.png` makes the picture of docs/observability.md. It is drawn
by matplotlib, as no package registry has Grafana; Grafana shows the same queries in its own style.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.dates import DateFormatter

from support.grafana import Expression, panel_expressions
from support.prometheus import Prometheus, prometheus

_SECONDS = 40
_PANELS = (
    ("Messages by state", "messages"),
    ("Flow", "a second"),
    ("Settled", "a second"),
    ("Oldest message", "s"),
    ("Delivery lag", "s"),
    ("Promotion lag", "s"),
    ("Handled", "a second"),
    ("Work", "a second"),
    ("Turns", "s"),
)
_LOGARITHMIC = ("Delivery lag", "Promotion lag", "Turns")


def _name(expression: Expression, labels: dict[str, str]) -> str:
    text = expression.legend
    for label in ("topic", "group", "state", "outcome", "reason", "turn"):
        text = text.replace(f"{{{{{label}}}}}", labels.get(label, ""))
    return " ".join(text.split())


def _draw(axes: Any, server: Prometheus, title: str, unit: str, span: tuple[float, float]) -> None:
    expressions = [each for each in panel_expressions() if each.where == title and each.legend not in ("", "{{le}}")]
    for expression in expressions:
        # The demo is short, and so must the windows of its rates be.
        for series in server.series(expression.text.replace("5m", "6s"), *span):
            moments = [datetime.fromtimestamp(moment, UTC) for moment, _ in series["values"]]
            values = [float(value) for _, value in series["values"]]
            axes.plot(moments, values, label=_name(expression, series["metric"]), linewidth=1.2)
    axes.set_title(title, fontsize=9, loc="left")
    axes.set_ylabel(unit, fontsize=7)
    axes.tick_params(labelsize=6)
    axes.xaxis.set_major_formatter(DateFormatter("%M:%S"))  # type: ignore[no-untyped-call]
    axes.grid(alpha=0.3)
    if title in _LOGARITHMIC:
        axes.set_yscale("log")
    if axes.get_lines():
        axes.legend(fontsize=5, loc="upper right", ncols=2)


def _play(directory: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(directory), "LISA_METRICS": "127.0.0.1:0", "LISA_SAMPLE_S": "1"}
    subprocess.run([sys.executable, "-m", "demo", "--seconds", str(_SECONDS)], env=environment, check=True)


def main(arguments: Sequence[str]) -> None:
    """Plays a demo, and draws what Prometheus knows of it into the named file."""
    figure, grid = plt.subplots(3, 3, figsize=(11, 7), layout="constrained")
    with tempfile.TemporaryDirectory() as named:
        place, logs = Path(named) / "prometheus", Path(named) / "demo"
        place.mkdir()
        logs.mkdir()
        with prometheus(place, logs) as server:
            began = time.time()
            _play(logs)
            span = (began, time.time())
            for axes, (title, unit) in zip(grid.flat, _PANELS, strict=True):
                _draw(axes, server, title, unit, span)
    figure.suptitle("The Grafana dashboard's queries over one demo, drawn by matplotlib", fontsize=10)
    figure.savefig(arguments[0], dpi=90)


if __name__ == "__main__":
    main(sys.argv[1:])
