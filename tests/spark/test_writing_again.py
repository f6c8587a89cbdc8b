"""What is written again adds nothing where rows have ids (promise 6): jobs, tasks and micro-batches done twice."""

import threading
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from pyspark import TaskContext
from pyspark.errors import PythonException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody does
from pyspark.sql.streaming import StreamingQuery

from support import Server, wait_until
from support.spark import LONG, SparkTopic

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(120 + 300 * LONG)]

ROWS = 20_000 * LONG
HOUR = 3600.0


def _orders(topic: SparkTopic, rows: int = ROWS, *, partitions: int = 2) -> DataFrame:
    frame = topic.spark.range(0, rows, 1, partitions)
    ids = F.format_string("order-%09d", "id").alias("id")
    return frame.select(ids, F.repeat(F.lit("x"), 200).alias("body"), F.lit(HOUR).alias("delay"))


def test_a_job_run_twice(topic: SparkTopic) -> None:
    """Its rows are there once, and the second run reports them as duplicates, in one line."""
    for _ in range(2):
        topic.write(_orders(topic))
    assert topic.waiting == ROWS
    first, second = topic.told()
    assert f": {ROWS} rows, {ROWS} sent, 0 duplicates, 0 bad, " in first
    assert f": {ROWS} rows, 0 sent, {ROWS} duplicates, 0 bad, " in second


def test_a_task_that_failed_half_way(topic: SparkTopic) -> None:
    """Spark does it again; what it had sent before it failed is not sent twice."""

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
    """Its bad rows' files go with it, and a corrected run adds only what was not sent."""
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


@pytest.fixture
def lasting(topic: SparkTopic, own_server: Callable[..., Server]) -> tuple[SparkTopic, Server]:
    """A topic on a server of its own, which may be stopped and keeps what it has."""
    server = own_server(appendonly="yes")
    return replace(topic, url=server.url, client=server.client()), server


def test_redis_away_in_the_middle_of_a_batch(lasting: tuple[SparkTopic, Server]) -> None:
    """The tasks wait for it, the job finishes, and the count is exact."""
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


@pytest.fixture
def arriving(tmp_path: Path) -> Callable[[int, int], None]:
    """Files that a stream reads: call it with the numbers of the orders of one file."""
    folder = tmp_path / "arriving"
    folder.mkdir()

    def put(first: int, last: int) -> None:
        scratch = tmp_path / f"{first}.part"
        scratch.write_text("\n".join(f"order-{number:09d},x,{HOUR}" for number in range(first, last)))
        scratch.rename(folder / f"{first}.csv")

    return put


def _stream(topic: SparkTopic, tmp_path: Path) -> DataFrame:
    reader = topic.spark.readStream.schema("id string, body string, delay double").option("maxFilesPerTrigger", 1)
    return reader.csv(str(tmp_path / "arriving"))


def test_a_micro_batch_replayed(topic: SparkTopic, tmp_path: Path, arriving: Callable[[int, int], None]) -> None:
    """The newest commit file is lost: the batch is written again, and adds nothing."""
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


def _stop_after(topic: SparkTopic, query: StreamingQuery, waiting: int) -> None:
    """Stops a query once it has written something more, in the middle of whatever it is doing then."""
    wait_until(lambda: topic.waiting > waiting or query.exception(), 60, what="the query to write")
    query.stop()


def test_a_query_stopped_and_restarted_while_rows_arrive(
    topic: SparkTopic, tmp_path: Path, arriving: Callable[[int, int], None]
) -> None:
    """Each row is there, and none twice, whenever the query was stopped."""
    rows, files, restarts = ROWS, 20, 10 if LONG > 1 else 3
    each, checkpoint = rows // files, tmp_path / "checkpoint"
    put = iter(range(0, rows, each))
    for _ in range(restarts):
        query = topic.start(_stream(topic, tmp_path), checkpoint)
        before = topic.waiting
        for first in islice(put, files // restarts):
            arriving(first, first + each)
        # In the middle of whatever it is doing then.
        _stop_after(topic, query, before)
    for first in put:
        arriving(first, first + each)
    query = topic.start(_stream(topic, tmp_path), checkpoint)
    query.processAllAvailable()
    query.stop()
    assert topic.waiting == rows
    assert topic.client.hlen(topic.keys.of("messages")) == rows


def test_bad_rows_of_a_replayed_micro_batch(
    topic: SparkTopic, tmp_path: Path, arriving: Callable[[int, int], None]
) -> None:
    """Their file is replaced, not added to."""
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
