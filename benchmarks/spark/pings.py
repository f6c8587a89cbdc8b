"""How long another client's PING takes while many tasks write or read.

Spark gets only the processor time that the server and that client leave, as if it ran on other machines.
"""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable

import redis

from benchmarks.spark.bench import Bench, by_hand, make_frame, start_session
from lisa_common.client.embedded.server import embedded_server

__all__ = ["measure_pings"]

_PAUSE_S = 0.002


def measure_pings(tasks: int, rows: int, rounds: int) -> dict[str, dict[str, float]]:  # noqa: ARG001
    """Returns the 99th percentile and the maximum of PING in ms, of one round: each starts all tasks' programs."""
    spans: list[tuple[str, float, float]] = []
    command = [sys.executable, "-m", "benchmarks.spark.pings"]
    with (
        embedded_server() as url,
        redis.Redis.from_url(url) as client,
        subprocess.Popen([*command, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as pings,
    ):
        os.nice(19)
        spark = start_session(f"local[{tasks}]")
        bench = Bench(spark, make_frame(spark, rows, tasks), url, client, rows)
        for name, run in _ways(bench, tasks).items():
            client.flushall()
            if name == "stream":
                bench.make_ready()
            began = time.monotonic()
            run()
            spans.append((name, began, time.monotonic()))
        spark.stop()
        samples = json.loads(pings.communicate()[0])
    return _summary(spans, samples)


def _ways(bench: Bench, tasks: int) -> dict[str, Callable[[], object]]:
    return {
        "by hand": lambda: bench.frame.foreachPartition(by_hand(bench.url)),
        "lisa": lambda: bench.lisa(bench.frame),
        "stream": lambda: bench.stream(batches=1, tasks=tasks),
    }


def _summary(spans: list[tuple[str, float, float]], samples: list[tuple[float, float]]) -> dict[str, dict[str, float]]:
    kept: dict[str, dict[str, float]] = {}
    for name, began, ended in spans:
        taken = sorted(ms for moment, ms in samples if began <= moment <= ended)
        kept[name] = {"p99": taken[len(taken) * 99 // 100], "max": taken[-1]}
    return kept


def _ping(url: str) -> None:
    """Pings until standard input ends; prints the moment of each PING, and the ms that it took."""
    samples = []
    with redis.Redis.from_url(url) as client:
        while not select.select([sys.stdin], [], [], _PAUSE_S)[0]:
            began = time.monotonic()
            client.ping()
            samples.append((began, (time.monotonic() - began) * 1000))
    print(json.dumps(samples))


if __name__ == "__main__":
    _ping(sys.argv[1])
