"""Seconds of a write by a standalone cluster, by executors and partitions."""

import tempfile
import time
from pathlib import Path

import redis

from benchmarks.spark.bench import Bench, make_frame, start_session
from lisa_common.client.embedded.server import embedded_server
from support.spark_cluster import spark_cluster

__all__ = ["measure_cluster"]

_PARTITIONS = (1, 2, 4, 8, 16, 32)
_MOST_ROUNDS = 3
_CONFIG = {
    # The tests' cluster does not optimize its code.
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=4",
    "spark.scheduler.minRegisteredResourcesRatio": "1",
    # A task runs where a core is free, wherever its rows are cached.
    "spark.locality.wait": "0",
}


def measure_cluster(executors: int, rows: int, rounds: int) -> dict[str, list[float]]:
    """Returns the seconds of a write for each number of partitions, without the first round, which warms up."""
    taken: dict[str, list[float]] = {str(partitions): [] for partitions in _PARTITIONS}
    with (
        tempfile.TemporaryDirectory(prefix="lisa-bench-") as directory,
        spark_cluster(Path(directory), executors) as cluster,
        embedded_server() as url,
        redis.Redis.from_url(url) as client,
    ):
        spark = start_session(cluster.url, **_CONFIG)
        frames = {name: make_frame(spark, rows, int(name)) for name in taken}
        for round_ in range(min(rounds, _MOST_ROUNDS) + 1):
            for name, frame in frames.items():
                client.flushall()
                began = time.perf_counter()
                Bench(spark, frame, url, client, rows).lisa(frame)
                if round_:
                    taken[name].append(time.perf_counter() - began)
        spark.stop()
    return taken
