"""Writing a frame: stored messages, and input refused before any task starts."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import functions as F  # noqa: N812 - as everybody does

from lisa_common.model.record import Record, unpack_record
from lisa_producer.spark import LisaDataSource
from support.spark import SparkTopic

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def _records(topic: SparkTopic) -> dict[str, Record]:
    stored: dict[bytes, bytes] = topic.client.hgetall(topic.keys.of("messages"))  # type: ignore[assignment]
    return {id.decode(): unpack_record(data) for id, data in stored.items()}


def test_all_columns(topic: SparkTopic) -> None:
    """Each column has its meaning for producers; a null means the default."""
    due = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    schema = (
        "id string, body string, due_at timestamp, delay double, ttl int, max_retries int, priority short, "
        "headers map<string,string>"
    )
    rows: list[tuple[Any, ...]] = [
        ("all", "b", due, None, 60, 3, 7, {"kind": "naïve"}),
        ("none", "b", None, None, None, None, None, None),
        ("later", "b", None, 1800.5, None, None, None, {}),
    ]
    topic.write(topic.spark.createDataFrame(rows, schema))
    records = _records(topic)
    full = records["all"]
    assert full.due_ms == due.timestamp() * 1000
    assert (full.ttl_ms, full.max_retries, full.priority) == (60_000, 3, 7)
    assert full.headers == {"kind": "naïve"}
    later = records["later"]
    assert later.due_ms == later.sent_ms + 1_800_500
    plain = records["none"]
    assert (plain.ttl_ms, plain.max_retries, plain.priority, plain.headers) == (None, None, 0, {})
    assert plain.due_ms == plain.sent_ms
    assert (topic.waiting, topic.ready) == (2, 1)


def test_bodies_arrive_byte_for_byte(topic: SparkTopic) -> None:
    """Strings are stored as UTF-8, binary unchanged (promise 10)."""
    texts = {"a": "order 7", "ü": "žluťoučký 🐎", "🐎": "", "|": "\u0000\n"}
    topic.write(topic.spark.createDataFrame(list(texts.items()), "id string, body string"))
    binary = {"c": b"\x00\xff\x0a\x7c", "d": b""}
    topic.write(topic.spark.createDataFrame(list(binary.items()), "id string, body binary"))
    stored = {id: record.body for id, record in _records(topic).items()}
    assert stored == {id: text.encode() for id, text in texts.items()} | binary


def test_structs_are_json(topic: SparkTopic) -> None:
    """A struct is a JSON object, with its nulls; times are ISO 8601 in the session's zone, decimals exact."""
    topic.write(
        topic.spark.sql(
            """select 'a' id, named_struct('n', 7, 'price', 19.90BD, 'none', cast(null as string),
               'at', timestamp'2026-01-31 12:00:00Z', 'day', date'2026-01-31',
               'tags', array('x', null), 'sizes', map('xl', 1.5D)) body"""
        )
    )
    assert json.loads(_records(topic)["a"].body) == {
        "n": 7,
        "price": 19.9,
        "none": None,
        "at": "2026-01-31T12:00:00+00:00",
        "day": "2026-01-31",
        "tags": ["x", None],
        "sizes": {"xl": 1.5},
    }


def test_intervals_and_decimals_are_durations(topic: SparkTopic) -> None:
    """A delay may be an interval, or any number of seconds."""
    topic.write(topic.spark.sql("select 'a' id, 'b' body, interval '0 01:00:00.5' day to second delay, 1.25BD ttl"))
    record = _records(topic)["a"]
    assert (record.due_ms - record.sent_ms, record.ttl_ms) == (3_600_500, 1_250)


def test_topic_by_row(topic: SparkTopic) -> None:
    """A column names the topic of each row; the option is for rows where it is null."""
    topic.write(topic.spark.sql("select 'b' body, t topic, 60 delay from values ('a'), ('b'), ('a'), (null) v(t)"))
    waiting = [topic.client.zcard(f"{topic.keys.prefix}:{{{name}}}:waiting") for name in ("a", "b", topic.keys.topic)]
    assert waiting == [2, 1, 1]


def test_column_names_have_no_case(topic: SparkTopic) -> None:
    """Spark ignores the case of names, too."""
    topic.write(topic.spark.sql("select 'a' ID, 'x' Body"))
    assert list(_records(topic)) == ["a"]


@pytest.mark.long
def test_registered_by_hand(topic: SparkTopic) -> None:
    """The source can be registered where Spark does not find it."""
    topic.spark.dataSource.register(LisaDataSource)
    topic.write(topic.spark.sql("select 'a' id, 'x' body"))
    assert topic.ready == 1


def test_bad_input_is_named_on_the_driver(topic: SparkTopic) -> None:
    """The error of a bad option or column names the valid ones, before any task starts (promise 13)."""
    with pytest.raises(AnalysisException, match=r"option must be one of url, prefix, .*; got 'batchmesages'"):
        topic.write(topic.spark.sql("select 'x' body"), batchMesages=5)
    with pytest.raises(AnalysisException, match=r"column must be one of body, topic, id, due_at.*; got 'when'"):
        topic.write(topic.spark.sql("select 'x' body, 1 when"))
    with pytest.raises(AnalysisException, match="mode must be append; got 'overwrite'"):
        topic.spark.sql("select 'x' body").write.format("lisa").options(**topic.options()).mode("overwrite").save()
    assert topic.client.hlen(topic.keys.of("messages")) == 0


def test_a_row_that_cannot_be_sent_fails_the_job(topic: SparkTopic) -> None:
    """The job fails with the row's number, id and reason; no row is dropped silently."""
    frame = topic.spark.createDataFrame([("a", None)], "id string, body string").coalesce(1)
    with pytest.raises(PythonException, match="row 0, id 'a' of partition 0 cannot be sent: body must be a value"):
        topic.write(frame)


def test_confirmed_or_failed(topic: SparkTopic) -> None:
    """Missing replicas fail the task."""
    frame = topic.spark.sql("select 'a' id, 'b' body").withColumn("delay", F.lit(5))
    with pytest.raises(PythonException, match="not confirmed: wanted 1 replicas, got 0"):
        topic.write(frame, confirmReplicas=1, confirmTimeout=0.05)
