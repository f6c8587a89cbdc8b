"""Spark reads a topic as a table, and as a stream."""

import threading
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F  # noqa: N812 - as everybody does

from lisa_common.model.policy import Policy
from lisa_common.protocol import consuming, managing
from lisa_producer import Message, Producer, ProducerSettings
from support import wait_until
from support.queue import Queue
from support.spark import LONG, READS_STREAMS, SparkTopic

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(120 + 300 * LONG)]

ROWS = 5_000 * LONG


@pytest.fixture
def producer(topic: SparkTopic) -> Producer:
    """A plain producer."""
    return Producer(settings=ProducerSettings.load(redis_url=topic.url, prefix=topic.keys.prefix))


def _send(producer: Producer, topic: SparkTopic, ids: range, **options: Any) -> None:
    messages = (Message(body=f"body {number}", id=f"i{number}", **options) for number in ids)
    producer.send_many(topic.keys.topic, messages, on_result=lambda _: None)


def _kill(producer: Producer, topic: SparkTopic, count: int) -> None:
    """Rejects ready messages, each with its own error."""
    queue = Queue(producer._connection, topic.keys, Policy())
    queue.join("g")
    for entries in iter(lambda: queue.connection.call(_read(queue)), []):
        ((_, batch),) = entries
        nacks = [consuming.Nack(entry, f"error of {entry.id}", rejected=True) for entry in batch[:count]]
        queue.connection.call(consuming.nack(queue.keys, "g", nacks, queue.policy))
        count -= len(nacks)


def _read(queue: Queue) -> Any:
    return consuming.read([queue.keys], "g", "c", limit=500, block_ms=None)


def test_every_dead_letter_is_a_row(topic: SparkTopic, producer: Producer) -> None:
    """The row has its reason, error, attempts and time of death."""
    _send(producer, topic, range(ROWS))
    _kill(producer, topic, ROWS)
    table = topic.table(state="garbage", partitionRows=ROWS // 4)
    assert table.rdd.getNumPartitions() == 4
    assert table.count() == ROWS
    wrong = table.where(
        (F.col("error") != F.concat(F.lit("error of "), "id"))
        | (F.col("reason") != "rejected")
        | F.col("died_at").isNull()
        | (F.col("body").cast("string") != F.concat(F.lit("body "), F.substring("id", 2, 10)))
    )
    assert wrong.count() == 0


def test_filters_of_one_query_leave_others_alone(topic: SparkTopic, producer: Producer) -> None:
    """Also with Spark's switch for filters of Python sources, as Spark shares one read among scans of a relation."""
    _send(producer, topic, range(20), delay=3600)
    _send(producer, topic, range(20, 25))
    _kill(producer, topic, 5)
    table = topic.table()
    garbage = table.where("state = 'garbage'")
    assert garbage.count() == 5
    assert table.count() == 25
    assert garbage.union(table).count() == 30
    assert table.where("state = 'retry'").count() == 0
    assert table.groupBy("state").count().orderBy("state").collect() == [("garbage", 5), ("waiting", 20)]


def test_options_select_at_the_server(topic: SparkTopic, producer: Producer) -> None:
    """Only the records of a time range are read."""
    soon = datetime.now(UTC) + timedelta(hours=1)
    _send(producer, topic, range(200), at=soon)
    _send(producer, topic, range(200, 210), at=soon + timedelta(hours=1))
    late = topic.table(dueFrom=(soon + timedelta(minutes=1)).isoformat())
    topic.client.config_resetstat()
    assert sorted(row.id for row in late.select("id").collect()) == sorted(f"i{n}" for n in range(200, 210))
    read = topic.client.info("commandstats")["cmdstat_hget"]["calls"]
    assert read <= 20, "the records of ten messages"


def test_some_columns(topic: SparkTopic, producer: Producer) -> None:
    """A reader's schema selects columns."""
    _send(producer, topic, range(3), delay=60, headers={"k": "v"})
    reader = topic.spark.read.format("lisa").options(**topic.options())
    frame = reader.schema("id string, headers map<string,string>").load()
    assert [row.asDict() for row in frame.orderBy("id").collect()] == [
        {"id": f"i{n}", "headers": {"k": "v"}} for n in range(3)
    ]


def test_reading_while_messages_move(topic: SparkTopic, producer: Producer) -> None:
    """A message that stays is exactly one row, while others move."""
    hour = 3600
    _send(producer, topic, range(ROWS), delay=hour)
    done = threading.Event()

    def move() -> None:
        with Producer(settings=ProducerSettings.load(redis_url=topic.url, prefix=topic.keys.prefix)) as other:
            for number in range(0, ROWS, 2):
                other.cancel(topic.keys.topic, f"i{number}")
                other.send(topic.keys.topic, "new", delay=hour - 1, id=f"n{number}")
                if done.is_set():
                    return

    mover = threading.Thread(target=move)
    mover.start()
    ids = Counter(row.id for row in topic.table(state="waiting", partitionRows=ROWS // 5).select("id").collect())
    done.set()
    mover.join()
    assert max(ids.values()) == 1
    assert {f"i{number}" for number in range(1, ROWS, 2)} <= ids.keys()


@pytest.mark.skipif(not READS_STREAMS, reason="needs PySpark 4.2")
@pytest.mark.long
def test_a_stream_read_as_a_group(topic: SparkTopic, producer: Producer, tmp_path: Path) -> None:
    """A restarted query misses nothing, and repeats nothing that it had committed."""
    rows, restarts = 60 * LONG, 2
    out, checkpoint = tmp_path / "out", tmp_path / "checkpoint"

    def start(**trigger: Any) -> Any:
        frame = topic.stream(maxRows=max(20, rows // 20), partitionRows=max(10, rows // 40)).load()
        named = frame.select("id", "attempts", F.col("body").cast("string").alias("body"))
        writer = named.writeStream.format("json").option("path", str(out))
        return writer.option("checkpointLocation", str(checkpoint)).trigger(**trigger).start()

    def read() -> list[str]:
        schema = "id string, attempts int, body string"
        return [row.id for row in topic.spark.read.schema(schema).json(str(out)).collect()] if out.exists() else []

    share = rows // restarts
    for round_ in range(restarts):
        _send(producer, topic, range(round_ * share, (round_ + 1) * share))
        query, before = start(processingTime="0 seconds"), len(read())
        _wait_for_more(query, read, before)
        query.stop()
    start(availableNow=True).awaitTermination()
    assert Counter(read()) == Counter(f"i{number}" for number in range(restarts * share))
    (group,) = topic.client.xinfo_groups(topic.keys.of("ready"))
    assert group["pending"] == 0
    assert topic.client.exists(*(topic.keys.of(name) for name in ("messages", "retry", "failures", "garbage"))) == 0
    assert producer._connection.call(managing.trim(topic.keys, spent_ms=0)).entries == restarts * share


def _wait_for_more(query: Any, read: Any, before: int) -> None:
    wait_until(lambda: len(read()) > before or query.exception(), 60, what="the query to have read something")
    assert query.exception() is None
