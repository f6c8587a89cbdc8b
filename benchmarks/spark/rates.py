"""Seconds of each way between Spark and Lisa, beside its plain twin."""

import time
from collections.abc import Callable
from functools import partial

import redis

from benchmarks.spark.bench import Bench, by_hand, make_frame, start_session
from lisa_common.client.embedded.server import embedded_server

__all__ = ["measure_rates"]

_SHARDS = (64, 256)


def _writes(bench: Bench) -> dict[str, Callable[[], None]]:
    frame = bench.frame
    return {
        "noop": lambda: frame.write.format("noop").mode("append").save(),
        "by hand": lambda: frame.foreachPartition(by_hand(bench.url)),
        "lisa, no ids": lambda: bench.lisa(frame.drop("id")),
        **{f"lisa, {shards} shards": partial(bench.lisa, frame, shards) for shards in _SHARDS},
        "lisa": lambda: bench.lisa(frame),
    }


def _reads(bench: Bench) -> dict[str, Callable[[], object]]:
    return {
        "table by hand": bench.table_by_hand,
        "table": bench.table,
        "pruned table": lambda: bench.table(dueUntil="2000-01-01T00:00:00Z"),
    }


def measure_rates(cores: int, rows: int, rounds: int) -> dict[str, list[float]]:
    """Returns seconds of each way in each round after the first, which warms up; and us of the server for a row."""
    spark = start_session(f"local[{cores}]")
    taken: dict[str, list[float]] = {}

    def time_it(name: str, run: Callable[[], object], *, kept: bool) -> None:
        began = time.perf_counter()
        result = run()
        if kept:
            taken.setdefault(name, []).append(time.perf_counter() - began)
            if isinstance(result, float):
                taken.setdefault(f"{name}, started", []).append(result)

    with embedded_server() as url, redis.Redis.from_url(url) as client:
        bench = Bench(spark, make_frame(spark, rows, cores), url, client, rows)
        for round_ in range(rounds + 1):
            for name, write in _writes(bench).items():
                client.flushall()
                time_it(name, write, kept=round_ > 0)
            for name, read in _reads(bench).items():
                time_it(name, read, kept=round_ > 0)
            streams: dict[str, Callable[[], object]] = {"consumer": bench.consume, "stream": bench.stream}
            for name, read in streams.items():
                client.flushall()
                bench.make_ready()
                before = bench.server_us()
                time_it(name, read, kept=round_ > 0)
                if round_:
                    taken.setdefault(f"{name}, server us a row", []).append((bench.server_us() - before) / rows)
    spark.stop()
    return taken
