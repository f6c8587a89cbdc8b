"""The results of Spark as text, with the verdicts of the targets."""

from collections.abc import Mapping
from statistics import median
from typing import Any

__all__ = ["report"]

_SINK = 0.65
"""Highest ratio of the sink's time to that of the same bytes written by hand."""
_SHARDS = 0.85
"""Lowest ratio of the sink's rows per second over 256 shards to those over one."""
_READER = 30_000
"""Fewest rows per second of a stream, once the query has started."""
_SERVER_US = 11.0
"""Most time of the server for a row of a stream."""
_PING_MS = 40.0
"""The 99th percentile of another client's PING stays below this."""
_TWINS = {"table": "table by hand", "pruned table": "table", "stream": "consumer", "stream, started": "consumer"}


def report(result: Mapping[str, Any]) -> bool:
    """Prints the results. Returns whether all targets hold."""
    rows, targets = result["rows"], dict[str, bool]()
    print(f"{rows:,} rows of 200-byte bodies; medians of the rounds\n")
    print(f"{'cores':<7}{'':<18}{'rows/s':>10}{'seconds':>10}{'spread':>16}{'against':>25}")
    for cores, ways in result["seconds"].items():
        targets |= _rates(rows, cores, ways)
    for tasks, ways in result.get("ping ms", {}).items():
        targets |= _pings(tasks, ways)
    for executors, ways in result.get("cluster seconds", {}).items():
        rates = (f"{partitions}: {rows / median(seconds):,.0f}" for partitions, seconds in ways.items())
        print(f"rows/s of {executors} executor(s), by partitions: {', '.join(rates)}")
    print()
    for target, holds in targets.items():
        print(f"target: {target}: {'holds' if holds else 'MISSED'}")
    return all(targets.values())


def _rates(rows: int, cores: str, ways: Mapping[str, list[float]]) -> dict[str, bool]:
    medians = {name: median(seconds) for name, seconds in ways.items()}
    for name, seconds in ways.items():
        if name.endswith("a row"):
            print(f"{cores:<7}{name}: {medians[name]:.1f}")
            continue
        spread = f"{min(seconds):.2f} to {max(seconds):.2f}"
        twin = _TWINS.get(name, "by hand")
        ratio = f"{medians[name] / medians[twin]:.2f} x {twin}"
        print(f"{cores:<7}{name:<18}{rows / medians[name]:>10,.0f}{medians[name]:>10.2f}{spread:>16}{ratio:>25}")
    print()
    sink, shards = medians["lisa"] / medians["by hand"], medians["lisa"] / medians["lisa, 256 shards"]
    reader, server_us = rows / medians["stream, started"], medians["stream, server us a row"]
    where = f"on {cores} core(s)"
    return {
        f"sink at most {_SINK} x by hand, {where}: {sink:.2f}": sink <= _SINK,
        f"256 shards at least {_SHARDS} of one, {where}: {shards:.2f}": shards >= _SHARDS,
        f"group reader at least {_READER:,} rows/s, {where}: {reader:,.0f}": reader >= _READER,
        f"group reader at most {_SERVER_US:.0f} us of the server a row, {where}: {server_us:.1f}": (
            server_us <= _SERVER_US
        ),
    }


def _pings(tasks: str, ways: Mapping[str, Mapping[str, float]]) -> dict[str, bool]:
    targets = {}
    for name, figures in ways.items():
        p99 = figures["p99"]
        print(f"another client's PING beside {tasks} tasks, {name}: p99 {p99:.1f} ms, at most {figures['max']:.1f}")
        if name != "by hand":
            targets[f"PING p99 below {_PING_MS:.0f} ms beside {tasks} tasks, {name}: {p99:.1f}"] = p99 < _PING_MS
    print()
    return targets
