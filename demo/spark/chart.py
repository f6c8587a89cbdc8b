"""The report as a picture."""

from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

from demo.spark.report import Carrier, Report

__all__ = ["draw"]

_LEAST_MS = 1.0
"""The least lateness that is drawn. The scale is logarithmic: Spark may be late by seconds, Lisa by milliseconds."""

_BLUE, _RED, _GREY = "#2a6f97", "#c8553d", "#555555"


def draw(report: Report, title: str, path: Path) -> None:
    """Draws how late each carrier's calls were handled, and how many of them there were, as a PNG."""
    carriers = report.carriers
    with mpl.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(11, 1.9 + 0.34 * len(carriers)), layout="constrained")
        late, many = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
        figure.suptitle(f"{title}: how late boarding was called", x=0.01, ha="left", fontsize=14, weight="bold")
        _lateness(late, carriers, report.total)
        _counts(many, carriers)
        late.set_yticks(range(len(carriers)), [f"{carrier.name or '?'}  {carrier.code}" for carrier in carriers])
        late.invert_yaxis()
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=130, format="png")


def _lateness(axes: Axes, carriers: list[Carrier], total: Carrier) -> None:
    places = [place for place, carrier in enumerate(carriers) if carrier.handled]
    of_them = [carriers[place] for place in places]
    p50, p99, worst = (
        [max(_LEAST_MS, getattr(carrier, name)) for carrier in of_them] for name in ("p50_ms", "p99_ms", "max_ms")
    )
    axes.hlines(places, p50, p99, color=_BLUE, linewidth=5, alpha=0.35, label="p50 to p99")
    axes.plot(p50, places, "o", color=_BLUE, label="p50")
    axes.plot(worst, places, "|", color=_RED, markersize=11, markeredgewidth=2, label="max")
    if total.p50_ms is not None:
        axes.axvline(total.p50_ms, color=_GREY, linewidth=1, linestyle=":", label=f"p50 of all: {total.p50_ms:.0f} ms")
    axes.set_title(f"From due to the handler's begin, of {total.handled} calls", loc="left", fontsize=11)
    axes.set_xlabel("ms, on a logarithmic scale")
    axes.set_xscale("log")
    axes.set_xlim(1, 2 * max([10.0, *worst]))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=4, frameon=False)


def _counts(axes: Axes, carriers: list[Carrier]) -> None:
    places = range(len(carriers))
    handled, garbage = ([getattr(carrier, name) for carrier in carriers] for name in ("handled", "garbage"))
    axes.barh(places, handled, color=_BLUE, label="handled")
    axes.barh(places, garbage, left=handled, color=_RED, label="garbage")
    for place, carrier in enumerate(carriers):
        text = f" {carrier.handled} + {carrier.garbage}"
        axes.text(carrier.handled + carrier.garbage, place, text, va="center", color=_GREY, fontsize=9)
    axes.set_title("What became of them", loc="left", fontsize=11)
    axes.set_xlabel("boarding calls")
    axes.margins(x=0.2)
    axes.tick_params(axis="y", length=0)
    axes.legend(loc="lower right", frameon=False)
