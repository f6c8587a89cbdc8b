"""`foreachBatch` may write a micro-batch several times: no write replaces, skips or repeats another's rows."""

import json
import pickle
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import (
    DataFrame,
    functions as F,  # noqa: N812 - as everybody does
)

from lisa_common.model.keys import ShardKeys
from lisa_producer.spark.source import LisaDataSource
from support.spark import HOUR, SparkTopic

pytestmark = [pytest.mark.spark, pytest.mark.slow]

Handle = Callable[[DataFrame, int], None]
Run = Callable[[Handle], None]


@pytest.fixture
def run(topic: SparkTopic, tmp_path: Path, arriving: Callable[[int, int], None]) -> Run:
    """Runs one micro-batch of 100 rows; the next run repeats it, as its commit file is lost."""
    arriving(0, 100)
    checkpoint = tmp_path / "checkpoint"

    def run(handle: Handle) -> None:
        for file in checkpoint.glob("commits/*0*"):
            file.unlink()
        rows = topic.spark.readStream.schema("id string, body string, delay double").csv(str(tmp_path / "arriving"))
        query = rows.writeStream.foreachBatch(handle).option("checkpointLocation", str(checkpoint))
        query.trigger(availableNow=True).start().awaitTermination()

    return run


def _lines(place: Path) -> list[str]:
    return [str(json.loads(line).get("id")) for file in place.glob("*.jsonl") for line in file.read_text().splitlines()]


def test_each_write_has_its_own_files(topic: SparkTopic, run: Run, tmp_path: Path) -> None:
    """They share directories, differ in topics, operations or nothing at all; a repeated batch replaces its files."""
    bad, outcomes = tmp_path / "bad", tmp_path / "outcomes"
    topics = [f"{name}-{topic.keys.topic}" for name in ("low", "high")]

    def handle(batch: DataFrame, _: int) -> None:
        rows = batch.withColumn("delay", F.when(F.col("id") < "order-000000010", -1.0).otherwise(HOUR))
        for name in topics:
            topic.write(rows, topic=name, badRows=f"{bad}/")
        for part in ("id < 'order-000000005'", "id >= 'order-000000005'"):
            topic.write(rows.where(part), topic=topics[0], badRows=f"{bad}/")
            topic.write(rows.where(part).withColumn("topic", F.lit(topics[0])), topic=None, badRows=f"{bad}/")
            topic.write(rows.where(part).drop("id"), topic=topics[0], badRows=f"of-{topic.keys.topic}")
        for operation in ("cancel", "purge"):
            ids = batch.select("id", F.lit(topics[0]).alias("topic"))
            topic.write(ids, topic=None, operation=operation, outcomes=outcomes)

    for _ in range(2):
        run(handle)
        assert len(_lines(bad)) == 4 * 10
        assert len(_lines(outcomes)) == 2 * 100
    of_topic = ShardKeys(topic.keys.prefix, f"of-{topic.keys.topic}")
    assert topic.client.hlen(of_topic.of("messages")) == 10


def test_each_write_is_remembered_by_itself(topic: SparkTopic, run: Run) -> None:
    """Two operations read the same ids, and two writes alike the same rows; a repeat adds nothing."""

    def handle(batch: DataFrame, _: int) -> None:
        topic.write(batch, rememberDays=1)
        for operation in ("purge", "cancel"):
            topic.write(batch.select("id"), operation=operation, group="g", rememberDays=1)
        rows = batch.select("body", "delay")
        for part in (F.col("id") < "order-000000030", F.col("id") >= "order-000000030", F.col("id") != "none"):
            topic.write(batch.where(part).select("body", "delay"), rememberDays=1)
        topic.write(rows, rememberDays=1, write="named")

    for _ in range(2):
        run(handle)
        assert topic.waiting == 300


def test_a_failed_write_is_tried_again(topic: SparkTopic, run: Run, tmp_path: Path) -> None:
    """The function itself may repeat it."""

    def handle(batch: DataFrame, _: int) -> None:
        with pytest.raises(Exception, match="priority must be a whole number"):
            topic.write(batch.withColumn("priority", F.lit(999)), outcomes=tmp_path / "outcomes")
        topic.write(batch.withColumn("priority", F.lit(9)), outcomes=tmp_path / "outcomes")

    run(handle)
    assert len(_lines(tmp_path / "outcomes")) == 100


def test_a_twin_that_ends_after_its_write_changes_nothing(topic: SparkTopic, run: Run, tmp_path: Path) -> None:
    """Speculation: Spark kills the slower try of a task, which notices that only after the write has ended."""
    options = topic.options(outcomes=tmp_path / "outcomes")

    def handle(batch: DataFrame, _: int) -> None:
        writer = LisaDataSource(options).writer(batch.schema, overwrite=False)

        def task(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield pa.RecordBatch.from_pydict({"message": [pickle.dumps(writer.write(rows))]})

        def killed(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield from rows
            raise EOFError

        def late_twin(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            with suppress(EOFError):
                writer.write(killed(rows))
            yield from ()

        first = batch.where("id < 'order-000000050'")
        done = first.mapInArrow(task, "message binary").collect()
        writer.commit([pickle.loads(row.message) for row in done])  # noqa: S301 - our own bytes
        assert first.mapInArrow(late_twin, "message binary").collect() == []
        topic.write(batch.where("id >= 'order-000000050'"), outcomes=tmp_path / "outcomes")

    run(handle)
    assert len(_lines(tmp_path / "outcomes")) == 100


def test_nothing_is_remembered_outside_of_micro_batches(topic: SparkTopic) -> None:
    """The promise could not be kept."""
    with pytest.raises(Exception, match="option rememberDays must be given for micro-batches: of a query, or in the"):
        topic.write(topic.spark.sql("SELECT 'a' AS id, 'x' AS body"), rememberDays=1)
