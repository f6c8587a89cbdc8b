"""Rows per second between Spark and Lisa, each way beside its plain twin in one run.

    make bench-spark                                       # needs Java 17
    make bench-spark BENCH=--report                        # measures nothing: the kept results, and their chart
    make bench-spark BENCH="--rows 5000 --rounds 1 --results /tmp"

One frame of 200-byte bodies, cached, goes in turn to Spark's `noop` sink, through `foreachPartition` with redis-py's
pipelines of `SET` and `ZADD` in batches of 500, and to `format("lisa")`, with and without ids, and over 1, 64 and 256
shards. Then the messages are read as a table, whole and pruned by an option, beside `HSCAN`; and once they are ready,
as a stream, beside one plain consumer: as a whole, and from the query's first trigger, as Spark takes seconds to start
one. Each round begins with an empty server; the medians of the rounds count, and ratios in one run.

Then another client sends PING while 128 tasks write and read; and a standalone cluster of one and two executors writes
the frame in 1 to 32 partitions.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.charts import draw_spark
from benchmarks.spark.cluster import measure_cluster
from benchmarks.spark.pings import measure_pings
from benchmarks.spark.rates import measure_rates
from benchmarks.spark.report import report
from benchmarks.store import RESULTS

_PARTS: dict[str, tuple[Callable[[int, int, int], object], tuple[int, ...]]] = {
    "seconds": (measure_rates, (1, 2)),
    "ping ms": (measure_pings, (128,)),
    "cluster seconds": (measure_cluster, (1, 2)),
}
"""By part, the function that measures it, and the numbers of cores, tasks or executors that it is called with."""


def main() -> None:
    """Measures each part in processes of its own; exit code 1 when a target is missed."""
    parser = argparse.ArgumentParser(prog="make bench-spark", description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--results", type=Path, default=RESULTS, help="directory of spark.json and spark.png")
    parser.add_argument("--report", action="store_true", help="measure nothing: print and draw what is kept")
    parser.add_argument("--part", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        part, size = options.part
        print(json.dumps(_PARTS[part][0](int(size), options.rows, options.rounds)))
        return
    kept = options.results / "spark.json"
    if not options.report:
        kept.write_text(json.dumps(_measure(options.rows, options.rounds), indent=1) + "\n", "utf-8")
    result = json.loads(kept.read_text("utf-8"))
    if "cluster seconds" in result:
        draw_spark(result["rows"], result["cluster seconds"], options.results / "spark.png")
    sys.exit(0 if report(result) else 1)


def _measure(rows: int, rounds: int) -> dict[str, Any]:
    result: dict[str, Any] = {"rows": rows}
    for part, (_, sizes) in _PARTS.items():
        result[part] = {}
        for size in sizes:
            options = ("--rows", rows, "--rounds", rounds, "--part", part, size)
            command = [sys.executable, "-m", "benchmarks.spark", *map(str, options)]
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
            result[part][str(size)] = json.loads(done.stdout.splitlines()[-1])
    return result


if __name__ == "__main__":
    main()
