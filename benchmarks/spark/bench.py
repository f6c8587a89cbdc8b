"""A Spark session, a frame of 200-byte bodies, and the ways between them and Lisa."""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import redis
from pyspark.sql import (
    DataFrame,
    Row,
    SparkSession,
    functions as F,  # noqa: N812 - as everybody does
)

from lisa_consumer import Consumer
from lisa_consumer.settings import ConsumerSettings
from lisa_producer import Message, Producer

__all__ = ["Bench", "by_hand", "make_frame", "start_session"]

_BATCH = 500
_HOUR = 3600.0


def start_session(master: str, **config: str) -> SparkSession:
    """Starts Spark with this program's Python."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(master).appName("lisa-benchmark")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.log.level": "ERROR",
        **config,
    }.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def make_frame(spark: SparkSession, rows: int, partitions: int) -> DataFrame:
    """Returns a cached frame of 200-byte bodies that are due in an hour."""
    ids = F.format_string("order-%010d", "id").alias("id")
    body = F.rpad(F.col("id").cast("string"), 200, "x").alias("body")
    frame = spark.range(0, rows, 1, partitions).select(ids, body, F.lit(_HOUR).alias("delay")).cache()
    frame.count()
    return frame


def by_hand(url: str) -> Callable[[Iterable[Row]], None]:
    """Returns what writes a partition by redis-py's pipelines."""

    def write(rows: Iterable[Row]) -> None:
        with redis.Redis.from_url(url) as client, client.pipeline(transaction=False) as pipe:
            now_ms = time.time() * 1000
            for number, row in enumerate(rows, 1):
                pipe.set(row.id, row.body)
                pipe.zadd("due", {row.id: now_ms + row.delay * 1000})
                if number % _BATCH == 0:
                    pipe.execute()
            pipe.execute()

    return write


@dataclass(frozen=True)
class Bench:
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

    def stream(self, batches: int = 2, tasks: int = 2) -> float:
        """Reads all ready messages, in batches of some tasks. Returns seconds from the query's first trigger."""
        reader = self.spark.readStream.format("lisa").options(url=self.url, topic="orders", group="spark")
        limit = self.rows // batches
        frame = reader.option("maxRows", limit).option("partitionRows", limit // tasks).load()
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
                deliveries = consumer.read(limit=_BATCH, wait=1)
                consumer.ack(*deliveries)
                seen += len(deliveries)

    def server_us(self) -> float:
        """The CPU time of the server so far, in us."""
        info: Any = self.client.info("cpu")
        return float(info["used_cpu_user"] + info["used_cpu_sys"]) * 1e6
