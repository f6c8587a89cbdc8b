"""The pages' sections on speed, from the results. Pure, but for `rewrite`."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.measurements import Ratios
from benchmarks.peers import PEERS
from benchmarks.report import figure
from benchmarks.targets import Verdict

__all__ = ["rewrite", "section", "summary"]

_PEERS_HEAD = ("peer", "schedule", "drain", "lag p50", "lag p99", "early by", "memory")
_PEERS_LEGEND = (
    "Schedule and drain are messages/s over the yardstick's. Lags are ms, at 250 messages/s with whole seconds of",
    "delay; negative ones are early. Memory is bytes of Redis for a waiting message.",
)
_YARDSTICK = "The yardstick is redis-py pipelining `SET` and `ZADD` of the same 200-byte bodies, in batches of 500."
_FASTEST = 5
"""Peers of the summary."""

_BEGIN, _END = "<!-- benchmarks: written by make bench -->", "<!-- end of benchmarks -->"


def rewrite(page: Path, text: str) -> None:
    """Replaces the section of a page; raises ValueError for a page without one."""
    before, begin, rest = page.read_text("utf-8").partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"{page}: the lines {_BEGIN!r} and {_END!r} are needed around the section")
    page.write_text(f"{before}{begin}\n\n{text}\n{end}{after}", "utf-8")


def summary(ratios: Ratios) -> str:
    """Markdown for the README: Lisa beside the fastest peers; raises KeyError if a part was not measured."""
    lines = [
        *_setting(ratios),
        "",
        *_beside_peers(list(_peers(ratios))[: 1 + _FASTEST]),
        "",
        "![Throughput](benchmarks/results/throughput.png)",
        "![Lag over load](benchmarks/results/curve.png)",
        "",
        "[All figures](docs/benchmarks.md), also of the targets that Lisa misses. `make bench` measures them again.",
        "",
    ]
    return "\n".join(lines)


def section(ratios: Ratios, verdicts: Sequence[Verdict]) -> str:
    """Markdown: the numbers, the peers and every target; raises KeyError if a part was not measured."""
    about = ratios.parts["bulk"].about
    held = sum(verdict.holds is True for verdict in verdicts)
    missed = [verdict.target.what for verdict in verdicts if verdict.holds is False]
    lines = [
        *_setting(ratios),
        *_busy(float(about["load"]), int(about["cores"])),
        "",
        *_table(("Lisa", "messages/s", "over the yardstick"), _lisa(ratios)),
        "",
        *_beside_peers(_peers(ratios)),
        "[How each was run](../benchmarks/README.md#peers), [all rounds](../benchmarks/results).",
        "",
        "![Throughput](../benchmarks/results/throughput.png)",
        "![Lag](../benchmarks/results/lag.png)",
        "![Lag over load](../benchmarks/results/curve.png)",
        "",
        f"Of {len(verdicts)} targets, {held} hold.",
    ]
    if missed:
        lines += ["These do not:", "", *_table(("target", "limit", "measured"), _missed(verdicts))]
    return "\n".join([*lines, "", "`make bench` measures all of this again, in less than half an hour.", ""])


def _setting(ratios: Ratios) -> list[str]:
    about = ratios.parts["bulk"].about
    place = f"{about['cores']} cores, with {about['server']} and Python {about['python']}"
    return [f"On {place}, on one machine; medians.", _YARDSTICK]


def _beside_peers(rows: Iterable[Sequence[str]]) -> list[str]:
    return [*_table(_PEERS_HEAD, rows), "", *_PEERS_LEGEND]


def _busy(load: float, cores: int) -> list[str]:
    if load < cores / 2:
        return []
    return [f"The machine was busy with other things, too (load average {load:g} before it began): only ratios count."]


def _lisa(ratios: Ratios) -> Iterable[tuple[str, ...]]:
    for what, name, yardstick in (
        ("schedule: `send_many`", "bulk: send_many", "bulk: yardstick"),
        ("schedule: `send` from 2,000 tasks", "concurrent: 2,000 tasks", "concurrent: yardstick"),
        ("schedule: `send` from 200 threads", "concurrent: 200 threads", "concurrent: yardstick"),
        ("drain: plain consumer", "drain: plain consumer", "drain: yardstick"),
        ("drain: `Worker`, a coroutine that does nothing", "drain: worker", "drain: yardstick"),
        ("the same steps as bare scripts: schedule", "bulk: bare script", "bulk: yardstick"),
        ("the same steps as bare scripts: drain", "drain: bare scripts", "drain: yardstick"),
    ):
        yield what, figure(ratios.median(name)), f"{figure(ratios.ratio(name, yardstick))} x"


def _peers(ratios: Ratios) -> Iterable[tuple[str, ...]]:
    columns: list[dict[str, float]] = [
        {"lisa": ratios.ratio("bulk: send_many", "bulk: yardstick"), **ratios.over_yardstick("peers", "schedule")},
        {"lisa": ratios.ratio("drain: worker", "drain: yardstick"), **ratios.over_yardstick("peers", "drain")},
        *(_medians(ratios, quantity) for quantity in ("lag p50", "lag p99", "earliest")),
        {"lisa": ratios.median("memory: waiting message"), **_medians(ratios, "memory")},
    ]
    drained = columns[1]
    for name in ("lisa", *sorted(PEERS, key=lambda peer: -drained.get(peer, 0))):
        if any(name in column for column in columns):
            cells = [figure(column[name]) if name in column else "-" for column in columns]
            yield "**Lisa**" if name == "lisa" else name, *cells
        else:
            yield name, ratios.parts["peers"].notes.get(name, "not run"), *[""] * (len(columns) - 1)


def _medians(ratios: Ratios, quantity: str) -> dict[str, float]:
    return {name: measured.median for name, measured in ratios.per_subject("peers", quantity).items()}


def _missed(verdicts: Sequence[Verdict]) -> Iterable[tuple[str, ...]]:
    for verdict in verdicts:
        if verdict.holds is False and verdict.value is not None:
            sense = "≥" if verdict.target.sense == ">=" else "≤"
            limit = f"{sense} {figure(verdict.target.limit)} {verdict.target.unit}"
            yield verdict.target.what, limit, figure(verdict.value)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    rule = ["---", *["---:"] * (len(head) - 1)]
    return [f"| {' | '.join(cells)} |" for cells in (head, rule, *rows)]
