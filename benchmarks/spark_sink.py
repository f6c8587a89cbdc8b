"""Rows per second from Spark into Lisa, against the same bytes written by hand, and against nothing.

One frame of 200-byte bodies, cached, goes in turn to Spark's `noop` sink, through `foreachPartition` with redis-py's
pipelines of `SET` and `ZADD` in batches of 500, and to `format("lisa")`, with and without ids. Each round begins with
an empty server; the medians of the rounds count, and ratios in one run.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import redis
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody does

from lisa_common.client.embedded.server import embedded_server

RESULTS = Path(__file__).parent / "results" / "spark.json"
TARGET = 1.5
"""Highest ratio of the sink's time to that of the same bytes written by hand."""
BATCH = 500
HOUR = 3600.0


def _session(cores: int) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(f"local[{cores}]").appName("lisa-benchmark")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.log.level": "ERROR",
    }.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _frame(spark: SparkSession, rows: int, cores: int) -> DataFrame:
    ids = F.format_string("order-%010d", "id").alias("id")
    body = F.rpad(F.col("id").cast("string"), 200, "x").alias("body")
    frame = spark.range(0, rows, 1, cores).select(ids, body, F.lit(HOUR).alias("delay")).cache()
    frame.count()
    return frame


def _by_hand(url: str) -> Callable[[Iterable[Row]], None]:
    def write(rows: Iterable[Row]) -> None:
        with redis.Redis.from_url(url) as client, client.pipeline(transaction=False) as pipe:
            now_ms = time.time() * 1000
            for number, row in enumerate(rows, 1):
                pipe.set(row.id, row.body)
                pipe.zadd("due", {row.id: now_ms + row.delay * 1000})
                if number % BATCH == 0:
                    pipe.execute()
            pipe.execute()

    return write


def _ways(frame: DataFrame, url: str) -> dict[str, Callable[[], None]]:
    def lisa(rows: DataFrame) -> None:
        rows.write.format("lisa").options(url=url, topic="orders").mode("append").save()

    return {
        "noop": lambda: frame.write.format("noop").mode("append").save(),
        "by hand": lambda: frame.foreachPartition(_by_hand(url)),
        "lisa": lambda: lisa(frame),
        "lisa, no ids": lambda: lisa(frame.drop("id")),
    }


def measure(cores: int, rows: int, rounds: int) -> dict[str, list[float]]:
    """Seconds of each way, by round, without the first round, which warms up."""
    spark = _session(cores)
    taken: dict[str, list[float]] = {}
    with embedded_server() as url, redis.Redis.from_url(url) as client:
        ways = _ways(_frame(spark, rows, cores), url)
        for round_ in range(rounds + 1):
            for name, write in ways.items():
                client.flushall()
                began = time.perf_counter()
                write()
                if round_:
                    taken.setdefault(name, []).append(time.perf_counter() - began)
                if name.startswith("lisa"):
                    assert client.zcard("lisa:{orders}:waiting") == rows  # noqa: S101 - or there is nothing to compare
    spark.stop()
    return taken


def _report(rows: int, taken: dict[str, dict[str, list[float]]]) -> bool:
    print(f"{rows:,} rows of 200-byte bodies; medians of {len(next(iter(taken['1'].values())))} rounds\n")
    print(f"{'cores':<7}{'':<14}{'rows/s':>10}{'seconds':>10}{'spread':>16}{'against by hand':>18}")
    good = True
    for cores, ways in taken.items():
        yardstick = statistics.median(ways["by hand"])
        for name, seconds in ways.items():
            median = statistics.median(seconds)
            spread = f"{min(seconds):.2f} to {max(seconds):.2f}"
            print(f"{cores:<7}{name:<14}{rows / median:>10,.0f}{median:>10.2f}{spread:>16}{median / yardstick:>17.2f}x")
        ratio = statistics.median(ways["lisa"]) / yardstick
        good = good and ratio <= TARGET
        print(f"{cores:<7}target: lisa at most {TARGET} x by hand: {'holds' if ratio <= TARGET else 'MISSED'}\n")
    return good


def main() -> None:
    """Measures one and two cores, each in a process of its own; exit code 1 when the target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cores", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cores:
        print(json.dumps(measure(options.cores, options.rows, options.rounds)))
        return
    taken: dict[str, dict[str, list[float]]] = {}
    for cores in ("1", "2"):
        command = [sys.executable, __file__, "--cores", cores, "--rows", options.rows, "--rounds", options.rounds]
        done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, check=True)
        taken[cores] = json.loads(done.stdout.splitlines()[-1])
    RESULTS.parent.mkdir(exist_ok=True)
    result: dict[str, Any] = {"rows": options.rows, "seconds": taken}
    RESULTS.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    sys.exit(0 if _report(options.rows, taken) else 1)


if __name__ == "__main__":
    main()
