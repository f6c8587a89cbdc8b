"""The results as pictures."""

from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.measurements import Ratios
from benchmarks.report import figure
from benchmarks.workloads.curve import RATES
from benchmarks.workloads.growth import LEVELS

__all__ = ["draw", "draw_spark"]

_LISA, _PEER, _BASELINE = "#c0392b", "#8da0b3", "#d9d2c5"
_PEERS = ["tab:blue", "tab:orange", "tab:green", "tab:purple", "tab:brown", "tab:gray"]


def draw(ratios: Ratios, directory: Path) -> list[Path]:
    """Draws the charts for which there are results. Returns the files."""
    mpl.use("Agg")
    files = []
    charts: dict[str, Callable[[Ratios], Figure]] = {
        "throughput": _throughput,
        "lag": _lag,
        "curve": _curve,
        "growth": _growth,
    }
    for name, painted in charts.items():
        try:
            chart = painted(ratios)
        except KeyError:  # one of its parts has not been measured
            continue
        files.append(directory / f"{name}.png")
        chart.savefig(files[-1], dpi=120)
        plt.close(chart)
    return files


def draw_spark(rows: int, seconds: Mapping[str, Mapping[str, list[float]]], file: Path) -> None:
    """Draws the rows per second of a Spark cluster; `seconds` are those of each round, by executors and partitions."""
    mpl.use("Agg")
    chart, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
    for (executors, ways), colour in zip(seconds.items(), (_PEER, _LISA), strict=True):
        label = "1 executor" if executors == "1" else f"{executors} executors"
        axes.plot(list(ways), [rows / median(taken) for taken in ways.values()], "o-", color=colour, label=label)
    axes.set_ylim(bottom=0)
    axes.set_title("rows/s, by a standalone cluster of Spark", fontsize=10)
    axes.set_xlabel("partitions")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    chart.savefig(file, dpi=120)
    plt.close(chart)


def _throughput(ratios: Ratios) -> Figure:
    chart, (left, right) = plt.subplots(1, 2, figsize=(11, 4.6), layout="constrained")
    scheduled = {
        "Lisa, send_many": ratios.ratio("bulk: send_many", "bulk: yardstick"),
        "bare script": ratios.ratio("bulk: bare script", "bulk: yardstick"),
        **ratios.over_yardstick("peers", "schedule"),
    }
    drained = {
        "Lisa, plain consumer": ratios.ratio("drain: plain consumer", "drain: yardstick"),
        "Lisa, worker": ratios.ratio("drain: worker", "drain: yardstick"),
        "bare scripts": ratios.ratio("drain: bare scripts", "drain: yardstick"),
        **ratios.over_yardstick("peers", "drain"),
    }
    _bars(left, scheduled, "scheduling in bulk")
    _bars(right, drained, "draining what is due at one instant")
    for axes in (left, right):
        axes.set_xlabel("messages/s, over the yardstick's (logarithmic)")
        axes.axvline(1, color="black", linewidth=0.8, linestyle=":")
    return chart


def _lag(ratios: Ratios) -> Figure:
    chart, (left, right) = plt.subplots(1, 2, figsize=(11, 4.6), layout="constrained")
    _bars(left, _lags(ratios, "peers"), "250 messages/s, one topic", best=min)
    left.set_xlabel("lag p99, ms (logarithmic)")
    _bars(right, _lags(ratios, "lag"), "camellia's case: 100 topics, 1,650 messages/s", best=min, scale="linear")
    right.set_xlabel("lag p99, ms")
    return chart


def _lags(ratios: Ratios, part: str) -> dict[str, float]:
    early = ratios.per_subject(part, "earliest")
    lags = {}
    for subject, lag in ratios.per_subject(part, "lag p99").items():
        name = "Lisa" if subject == "lisa" else subject
        lags[f"{name} (also early)" if early[subject].median else name] = lag.median
    return lags


def _curve(ratios: Ratios) -> Figure:
    chart, panels = plt.subplots(1, 2, figsize=(11, 4.6), layout="constrained", sharey=True)
    for axes, quantity in zip(panels, ("lag p50", "lag p99"), strict=True):
        lags = ratios.per_subject("curve", quantity)
        axes.set_prop_cycle(color=_PEERS)
        for name in dict.fromkeys(subject.partition(" at ")[0] for subject in lags):
            known = [rate for rate in RATES if f"{name} at {rate}/s" in lags]
            # A queue may be early, which a logarithmic scale cannot show.
            values = [max(0.5, lags[f"{name} at {rate}/s"].median) for rate in known]
            is_lisa = name == "lisa"
            style = {"color": _LISA, "linewidth": 2.5, "zorder": 3} if is_lisa else {"linewidth": 1.2}
            axes.plot(known, values, "o-", markersize=4, label="Lisa" if is_lisa else name, **style)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_title(f"{quantity}, ms")
        axes.set_xlabel("messages/s, one topic; a line ends where the queue cannot keep up")
        axes.spines[["top", "right"]].set_visible(False)
    panels[1].legend(frameon=False)
    return chart


def _bars(
    axes: Axes, values: Mapping[str, float], title: str, *, best: Callable[..., str] = max, scale: str = "log"
) -> None:
    # Bars go upwards: the best comes last.
    ordered = sorted(values, key=values.__getitem__, reverse=best is min)
    colours = [_LISA if n.startswith("Lisa") else _BASELINE if n.startswith("bare") else _PEER for n in ordered]
    bars = axes.barh(ordered, [values[name] for name in ordered], color=colours)
    axes.bar_label(bars, [figure(values[name]) for name in ordered], padding=3, fontsize=8)
    axes.set_xscale(scale)
    axes.margins(x=0.15)
    axes.set_title(title)
    axes.spines[["top", "right"]].set_visible(False)


def _growth(ratios: Ratios) -> Figure:
    chart, panels = plt.subplots(1, 4, figsize=(13, 3), layout="constrained")
    quantities: dict[str, Callable[[str], float]] = {
        "send_many over the yardstick": lambda name: ratios.ratio(f"{name}, send_many", f"{name}, yardstick"),
        "lag p99, ms": lambda name: ratios.median(f"{name}, lag p99"),
        "idle CPU, s/min": lambda name: ratios.median(f"{name}, idle CPU of programs"),
        "bytes per waiting message": lambda name: ratios.median(f"{name}, memory"),
    }
    for axes, (title, value) in zip(panels, quantities.items(), strict=True):
        values = [value(f"growth: {name}") for name in LEVELS]
        axes.plot(list(LEVELS.values()), values, "o-", color=_LISA)
        axes.set_xscale("log")
        axes.set_ylim(0, 1.15 * max(values))
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("waiting messages")
        axes.spines[["top", "right"]].set_visible(False)
    return chart
