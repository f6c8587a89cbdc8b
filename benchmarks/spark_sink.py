"""Rows per second between Spark and Lisa, each way beside its plain twin in one run.

One frame of 200-byte bodies, cached, goes in turn to Spark's `noop` sink, through `foreachPartition` with redis-py's
pipelines of `SET` and `ZADD` in batches of 500, and to `format("lisa")`, with and without ids, and over 1, 64 and 256
shards. Then the messages are read as a table, whole and pruned by an option, beside `HSCAN`; and once they are ready,
as a stream, beside one plain consumer: as a whole, and from the query's first trigger, as Spark takes seconds to start
one. Each round begins with an empty server; the medians of the rounds count, and ratios in one run.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import redis
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody does

from lisa_common.client.embedded.server import embedded_server
from lisa_consumer import Consumer
from lisa_consumer.settings import ConsumerSettings
from lisa_producer import Message, Producer

RESULTS = Path(__file__).parent / "results" / "spark.json"
TARGET = 0.75
"""Highest ratio of the sink's time to that of the same bytes written by hand."""
TARGET_SHARDS = 1 / 0.8
"""Highest ratio of the sink's time over 256 shards to that over one."""
TARGET_READER = 25_000
"""Least rows per second of a stream, once the query has started."""
TARGET_SERVER_US = 12.0
"""Most time of the server for a row of a stream."""
SHARDS = (64, 256)
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


@dataclass(frozen=True)
class _Bench:
    """One server, one session and one frame."""

    spark: SparkSession
    frame: DataFrame
    url: str
    client: redis.Redis
    rows: int

    def lisa(self, rows: DataFrame, shards: int = 1) -> None:
        """Writes the frame."""
        if shards > 1:
            self.client.hset("lisa:topics", "orders", json.dumps({"shards": shards}))
        rows.write.format("lisa").options(url=self.url, topic="orders").mode("append").save()

    def table(self, **options: str) -> int:
        """Reads the table, with its bodies."""
        table = self.spark.read.format("lisa").options(url=self.url, topic="orders", **options).load()
        return int(table.where("length(body) = 200").count())

    def table_by_hand(self) -> None:
        """The same messages as the server has them."""
        cursor, seen = 0, 0
        while True:
            cursor, page = self.client.hscan("lisa:{orders}:messages", cursor, count=1_000)
            seen += len(page)
            if not cursor:
                break
        assert seen == self.rows  # noqa: S101 - or there is nothing to compare

    def make_ready(self) -> None:
        """Sends the messages, due now."""
        with Producer(self.url) as producer:
            messages = (Message(body="x" * 200, id=f"order-{number:010d}") for number in range(self.rows))
            producer.send_many("orders", messages, on_result=lambda _: None)

    def stream(self) -> float:
        """Reads all ready messages as a stream. Returns seconds from the query's first trigger."""
        reader = self.spark.readStream.format("lisa").options(url=self.url, topic="orders", group="spark")
        frame = reader.option("maxRows", self.rows // 2).option("partitionRows", self.rows // 4).load()
        with tempfile.TemporaryDirectory() as checkpoint:
            writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
            query = writer.trigger(availableNow=True).start()
            query.awaitTermination()
            ended = datetime.now(UTC)
            return (ended - datetime.fromisoformat(query.recentProgress[0].timestamp)).total_seconds()

    def consume(self) -> None:
        """Reads all ready messages by one plain consumer."""
        seen = 0
        with Consumer("orders", "plain", settings=ConsumerSettings.load(redis_url=self.url)) as consumer:
            while seen < self.rows:
                deliveries = consumer.read(limit=BATCH, wait=1)
                consumer.ack(*deliveries)
                seen += len(deliveries)

    def server_us(self) -> float:
        """The CPU time of the server so far, in us."""
        info: Any = self.client.info("cpu")
        return float(info["used_cpu_user"] + info["used_cpu_sys"]) * 1e6


def _writes(bench: _Bench) -> dict[str, Callable[[], None]]:
    frame = bench.frame
    return {
        "noop": lambda: frame.write.format("noop").mode("append").save(),
        "by hand": lambda: frame.foreachPartition(_by_hand(bench.url)),
        "lisa, no ids": lambda: bench.lisa(frame.drop("id")),
        **{f"lisa, {shards} shards": partial(bench.lisa, frame, shards) for shards in SHARDS},
        "lisa": lambda: bench.lisa(frame),
    }


def _reads(bench: _Bench) -> dict[str, Callable[[], object]]:
    return {
        "table by hand": bench.table_by_hand,
        "table": bench.table,
        "pruned table": lambda: bench.table(dueUntil="2000-01-01T00:00:00Z"),
    }


def measure(cores: int, rows: int, rounds: int) -> dict[str, list[float]]:
    """Seconds of each way, by round, without the first round, which warms up; and us of the server for a read row."""
    spark = _session(cores)
    taken: dict[str, list[float]] = {}

    def time_it(name: str, run: Callable[[], object], *, kept: bool) -> None:
        began = time.perf_counter()
        result = run()
        if kept:
            taken.setdefault(name, []).append(time.perf_counter() - began)
            if isinstance(result, float):
                taken.setdefault(f"{name}, started", []).append(result)

    with embedded_server() as url, redis.Redis.from_url(url) as client:
        bench = _Bench(spark, _frame(spark, rows, cores), url, client, rows)
        for round_ in range(rounds + 1):
            for name, write in _writes(bench).items():
                client.flushall()
                time_it(name, write, kept=round_ > 0)
            for name, read in _reads(bench).items():
                time_it(name, read, kept=round_ > 0)
            for name, read in {"consumer": bench.consume, "stream": bench.stream}.items():
                client.flushall()
                bench.make_ready()
                before = bench.server_us()
                time_it(name, read, kept=round_ > 0)
                if round_:
                    taken.setdefault(f"{name}, server us a row", []).append((bench.server_us() - before) / rows)
    spark.stop()
    return taken


_TWINS = {"table": "table by hand", "pruned table": "table", "stream": "consumer", "stream, started": "consumer"}


def _report(rows: int, taken: dict[str, dict[str, list[float]]]) -> bool:
    print(f"{rows:,} rows of 200-byte bodies; medians of {len(next(iter(taken['1'].values())))} rounds\n")
    print(f"{'cores':<7}{'':<18}{'rows/s':>10}{'seconds':>10}{'spread':>16}{'against':>25}")
    good = True
    for cores, ways in taken.items():
        medians = {name: statistics.median(seconds) for name, seconds in ways.items()}
        for name, seconds in ways.items():
            if name.endswith("a row"):
                print(f"{cores:<7}{name}: {medians[name]:.1f}")
                continue
            spread = f"{min(seconds):.2f} to {max(seconds):.2f}"
            twin = _TWINS.get(name, "by hand")
            ratio = f"{medians[name] / medians[twin]:.2f} x {twin}"
            print(f"{cores:<7}{name:<18}{rows / medians[name]:>10,.0f}{medians[name]:>10.2f}{spread:>16}{ratio:>25}")
        targets = {
            f"lisa at most {TARGET} x by hand": medians["lisa"] / medians["by hand"] <= TARGET,
            "256 shards at least 0.8 of one": medians["lisa, 256 shards"] / medians["lisa"] <= TARGET_SHARDS,
            f"started stream at least {TARGET_READER:,} rows/s": rows / medians["stream, started"] >= TARGET_READER,
            f"stream at most {TARGET_SERVER_US} us a row": medians["stream, server us a row"] <= TARGET_SERVER_US,
        }
        for target, holds in targets.items():
            print(f"{cores:<7}target: {target}: {'holds' if holds else 'MISSED'}")
        print()
        good = good and all(targets.values())
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
