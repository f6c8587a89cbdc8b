"""Repeated jobs, tasks and micro-batches add nothing where rows have ids (promise 6)."""

import random
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from pyspark import TaskContext
from pyspark.errors import PythonException
from pyspark.sql import (
    DataFrame,
    functions as F,  # noqa: N812 - as everybody does
)
from pyspark.sql.streaming import StreamingQuery

from lisa_common.model.keys import ShardKeys
from lisa_consumer import Consumer
from lisa_consumer.settings import ConsumerSettings
from support import Server, wait_until
from support.spark import HOUR, LONG, SparkTopic

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(120 + 300 * LONG)]

ROWS = 20_000 * LONG


def _orders(topic: SparkTopic, rows: int = ROWS, *, partitions: int = 2) -> DataFrame:
    frame = topic.spark.range(0, rows, 1, partitions)
    ids = F.format_string("order-%09d", "id").alias("id")
    return frame.select(ids, F.repeat(F.lit("x"), 200).alias("body"), F.lit(HOUR).alias("delay"))


def test_a_job_run_twice(topic: SparkTopic) -> None:
    """Its rows are stored once; the second run logs them as duplicates in one line."""
    for _ in range(2):
        topic.write(_orders(topic))
    assert topic.waiting == ROWS
    first, second = topic.told()
    assert f": {ROWS} rows, {ROWS} sent, 0 duplicates, 0 bad, " in first
    assert f": {ROWS} rows, 0 sent, {ROWS} duplicates, 0 bad, " in second


def test_a_task_that_failed_half_way(topic: SparkTopic) -> None:
    """Spark repeats the task; rows sent before the failure are not sent twice."""

    def fail_once(number: int) -> int:
        context = TaskContext.get()
        if context and context.attemptNumber() == 0 and number == ROWS - 1:
            raise RuntimeError("the first attempt fails at its last row")
        return number

    rows = topic.spark.range(0, ROWS, 1, 1).select(F.udf(fail_once, "long", useArrow=False)("id").alias("id"))
    frame = rows.select(F.col("id").cast("string").alias("id"), F.lit("x").alias("body"), F.lit(HOUR).alias("delay"))
    topic.write(frame)
    assert topic.waiting == ROWS


def test_a_job_that_failed_for_good(topic: SparkTopic, tmp_path: Path) -> None:
    """Its files of bad rows are removed, and a corrected run adds only the unsent rows."""
    frame = _orders(topic, 200)
    bad = frame.withColumn("delay", F.when(F.col("id") == "order-000000150", -1.0).otherwise(HOUR))
    worse = bad.withColumn("id", F.when(F.col("id") == "order-000000020", "~").otherwise(F.col("id")))
    with pytest.raises(PythonException, match=r"row 50, id 'order-000000150' of partition 1 cannot be sent: delay"):
        topic.write(bad)
    topic.write(worse, badRows=str(tmp_path / "aside"))
    assert topic.waiting == 198 + (topic.client.hexists(topic.keys.of("messages"), "order-000000020"))
    lines = [line for file in (tmp_path / "aside").iterdir() for line in file.read_text().splitlines()]
    assert len(lines) == 2
    topic.write(frame)
    assert topic.waiting == 200


def test_bad_rows_of_tasks_that_failed_half_way(topic: SparkTopic) -> None:
    """Each bad row is in the topic once, though all are equal; another run adds its own."""

    def fail_once(number: int) -> int:
        context = TaskContext.get()
        if context and context.attemptNumber() == 0 and number % ROWS == ROWS - 1:
            raise RuntimeError("the first attempts fail at their last rows")
        return number

    rows = topic.spark.range(0, 2 * ROWS, 1, 2).select(F.udf(fail_once, "long", useArrow=False)("id").alias("id"))
    delay = F.when(F.col("id") % (ROWS // 2) == 0, -1.0).otherwise(HOUR).alias("delay")
    bad = ShardKeys(topic.keys.prefix, f"bad-{topic.keys.topic}")
    for count in (4, 8):
        topic.write(rows.select(F.lit("x").alias("body"), delay), badRows=bad.topic)
        assert topic.client.xlen(bad.of("ready")) == count


@pytest.fixture
def lasting(topic: SparkTopic, own_server: Callable[..., Server]) -> tuple[SparkTopic, Server]:
    """A topic on its own server, which keeps its data when stopped."""
    server = own_server(appendonly="yes")
    return replace(topic, url=server.url, client=server.client()), server


def test_redis_away_in_the_middle_of_a_batch(lasting: tuple[SparkTopic, Server]) -> None:
    """The tasks wait, the job finishes, and the count is exact."""
    topic, server = lasting
    down = threading.Event()

    def stop_and_start() -> None:
        wait_until(lambda: topic.waiting > ROWS // 10, 60, what="the batch to be under way")
        server.stop()
        down.set()
        threading.Event().wait(15 if LONG > 1 else 2)
        server.start()

    accident = threading.Thread(target=stop_and_start)
    accident.start()
    topic.write(_orders(topic, 3 * ROWS), patience=60)
    accident.join()
    assert down.is_set()
    assert topic.waiting == 3 * ROWS


def _stream(topic: SparkTopic, tmp_path: Path) -> DataFrame:
    reader = topic.spark.readStream.schema("id string, body string, delay double").option("maxFilesPerTrigger", 1)
    return reader.csv(str(tmp_path / "arriving"))


def test_a_micro_batch_replayed(topic: SparkTopic, tmp_path: Path, arriving: Callable[[int, int], None]) -> None:
    """Without the newest commit file the batch is written again, and adds nothing."""
    arriving(0, 100)
    arriving(100, 200)
    checkpoint = tmp_path / "checkpoint"
    query = topic.start(_stream(topic, tmp_path), checkpoint)
    query.processAllAvailable()
    query.stop()
    assert topic.waiting == 200
    for file in [checkpoint / "commits" / "1", checkpoint / "commits" / ".1.crc"]:
        file.unlink()
    query = topic.start(_stream(topic, tmp_path), checkpoint)
    query.processAllAvailable()
    query.stop()
    assert topic.waiting == 200
    *_, first, again = topic.told()
    assert "wrote batch 1 to " in first
    assert "wrote batch 1 to " in again
    assert ": 100 rows, 0 sent, 100 duplicates, 0 bad, " in again


class _Handled:
    """A consumer in a thread, which acks its deliveries and counts the ids."""

    def __init__(self, topic: SparkTopic) -> None:
        settings = ConsumerSettings.load(redis_url=topic.url, prefix=topic.keys.prefix)
        self._consumer = Consumer(topic.keys.topic, group="g", settings=settings)
        self.ids: Counter[str] = Counter()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with self._consumer:
            while True:
                deliveries = self._consumer.read(limit=1_000, wait=0.2)
                if deliveries:
                    self._consumer.ack(*deliveries)
                    self.ids.update(delivery.id for delivery in deliveries)
                elif self._ended.is_set():
                    return

    def finish(self) -> Counter[str]:
        """Reads the remaining messages; returns the deliveries of each id."""
        self._ended.set()
        self._thread.join()
        return self.ids


def _stop_after(query: StreamingQuery, handled: _Handled, rows: int) -> None:
    """Stops a query in the middle of its work once as many rows have been handled."""
    wait_until(lambda: len(handled.ids) >= rows or query.exception(), 60, what="the query to write")
    query.stop()


def test_a_query_stopped_and_restarted_while_rows_arrive(
    topic: SparkTopic, tmp_path: Path, arriving: Callable[[int, int], None]
) -> None:
    """Each row is delivered exactly once, whenever the query was stopped."""
    files, restarts, chance = 20, 10 if LONG > 1 else 3, random.Random(LONG)
    each, checkpoint = ROWS // files, tmp_path / "checkpoint"
    put, handled = iter(range(0, ROWS, each)), _Handled(topic)
    frame = _stream(topic, tmp_path).drop("delay")
    for _ in range(restarts):
        query = topic.start(frame, checkpoint)
        for first in islice(put, files // restarts):
            arriving(first, first + each)
        _stop_after(query, handled, len(handled.ids) + chance.randrange(1, each))
    for first in put:
        arriving(first, first + each)
    query = topic.start(frame, checkpoint)
    query.processAllAvailable()
    query.stop()
    delivered = handled.finish()
    assert len(delivered) == ROWS
    assert max(delivered.values()) == 1
    written = sum(int(line.partition(" sent")[0].rpartition(" ")[2]) for line in topic.told())
    assert written <= ROWS, "what a stopped batch had sent is a duplicate when it is done again"


def test_bad_rows_of_a_replayed_micro_batch(
    topic: SparkTopic, tmp_path: Path, arriving: Callable[[int, int], None]
) -> None:
    """The batch replaces its file."""
    arriving(0, 10)
    checkpoint, aside = tmp_path / "checkpoint", tmp_path / "aside"
    frame = _stream(topic, tmp_path).withColumn("priority", F.lit(999))
    for _ in range(2):
        query = topic.start(frame, checkpoint, badRows=str(aside))
        query.processAllAvailable()
        query.stop()
        (file,) = aside.iterdir()
        assert len(file.read_text().splitlines()) == 10
        for lost in (checkpoint / "commits").glob("*0*"):
            lost.unlink()
    assert topic.client.exists(topic.keys.of("messages")) == 0
