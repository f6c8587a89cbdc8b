"""Rows that change messages which exist: one task, without Spark."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import redis

from lisa_common.client.connection import Connection
from lisa_common.errors import InvalidInput
from lisa_common.model.keys import ShardKeys, topics_key
from lisa_common.model.policy import Policy
from lisa_common.protocol import managing
from lisa_producer import Message, Producer, ProducerSettings, State
from lisa_producer.spark.bad_rows import BadRow
from lisa_producer.spark.columns import Columns
from lisa_producer.spark.options import WriteOptions
from lisa_producer.spark.receipts import receipt_of
from lisa_producer.spark.writer import Sink, Written
from support.queue import Queue
from support.stored import body_of

Rows = dict[str, list[Any]]
Apply = Callable[..., tuple[Written, dict[str, Any]]]


@pytest.fixture(params=[1, 3], ids=["one shard", "three shards"])
def producer(request: pytest.FixtureRequest, client: redis.Redis, redis_url: str, prefix: str) -> Producer:
    """A topic of one or three shards; the latter has been resharded, and keeps messages in its former shard."""
    producer = Producer(settings=ProducerSettings.load(redis_url=redis_url, prefix=prefix))
    producer.send_many("orders", [Message(body="old", id=id, delay=3600) for id in ("a", "b", "c")])
    if request.param > 1:
        client.hset(topics_key(prefix), "orders", Policy(shards=3, former=(1,)).dump())
        client.set(ShardKeys(prefix, "orders").of("closed"), "1")
    return producer


@pytest.fixture
def apply(redis_url: str, prefix: str, tmp_path: Path) -> Apply:
    """Applies an operation to rows. Returns the counts, and the outcome of each id."""

    def apply(operation: str, rows: Rows, **options: Any) -> tuple[Written, dict[str, Any]]:
        given = {"url": redis_url, "prefix": prefix, "topic": "orders", "operation": operation}
        given |= {"outcomes": f"{tmp_path}/outcomes"} | {name.lower(): str(value) for name, value in options.items()}
        sink = Sink(WriteOptions.of(given), Columns(tuple(rows), given["topic"]), operation)
        written = sink.write(iter([pa.RecordBatch.from_pydict(rows)]))
        lines = Path(written.outcome_file or "").read_text().splitlines() if written.outcome_file else []
        found = [json.loads(line) for line in lines]
        return written, {outcome["id"]: outcome["outcome"] for outcome in found}

    return apply


def test_send(producer: Producer, apply: Apply) -> None:
    """Outcomes say what was sent, and what was known."""
    written, outcomes = apply("send", {"id": ["a", "new"], "body": ["x", "y"]})
    assert (written.sent, written.duplicates) == (1, 1)
    assert outcomes == {"a": "duplicate", "new": "sent"}
    assert producer.find("orders", "new")


def test_cancel(producer: Producer, apply: Apply) -> None:
    """Messages are cancelled by id, wherever they are; unknown ids are reported."""
    written, outcomes = apply("cancel", {"id": ["a", "b", "nothing"]})
    assert outcomes == {"a": "cancelled", "b": "cancelled", "nothing": "unknown"}
    assert (written.rows, written.sent, written.duplicates) == (3, 2, 1)
    assert producer.find("orders", "a") is None
    assert producer.find("orders", "c") is not None


def test_reschedule(producer: Producer, apply: Apply) -> None:
    """Each row has its due time, or its delay."""
    due = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=5)
    rows = {"id": ["a", "nothing"], "due_at": pa.array([due, due], pa.timestamp("us", tz="UTC"))}
    assert apply("reschedule", rows)[1] == {"a": "rescheduled", "nothing": "unknown"}
    found = producer.find("orders", "a")
    assert found is not None
    assert found.record is not None
    assert found.record.due_ms == due.timestamp() * 1000


def test_a_reschedule_to_no_time(producer: Producer, apply: Apply, tmp_path: Path) -> None:
    """Such as a text that was no time: the message stays where it is, and is not due now."""
    rows = {"id": ["a", "b"], "due_at": pa.nulls(2, pa.timestamp("us", tz="UTC")), "delay": [None, 0]}
    written, outcomes = apply("reschedule", rows, badRows=f"{tmp_path}/bad/")
    assert (written.bad, outcomes) == (1, {"b": "rescheduled"})
    error = json.loads(Path(written.bad_file or "").read_text())["error"]
    assert error == "delay must be given, 0 for now, or at in its place; got None"
    found = producer.find("orders", "a")
    assert found
    assert found.state is State.WAITING


def test_upsert(producer: Producer, apply: Apply) -> None:
    """What waits gets another body and due time; what is unknown is sent; what is due already stays."""
    producer.send("orders", "now", id="due")
    rows = {"id": ["a", "new", "due"], "body": ["newer", "first", "late"], "delay": [60.0, 60.0, 60.0]}
    written, outcomes = apply("upsert", rows)
    assert outcomes == {"a": "updated", "new": "sent", "due": "late"}
    assert (written.sent, written.duplicates) == (2, 1)
    bodies = {
        id: (found.record.body if (found := producer.find("orders", id)) and found.record else None)
        for id in rows["id"]
    }
    assert bodies == {"a": b"newer", "new": b"first", "due": b"now"}


def test_upsert_of_a_bad_row(producer: Producer, apply: Apply) -> None:
    """A body that the topic refuses fails the task, or is set aside; the others are written."""
    rows = {"id": ["a", "b"], "body": ["x" * 2_000_000, "fine"]}
    with pytest.raises(BadRow, match="row 0, id 'a' of partition 0 cannot be sent: body must be at most"):
        apply("upsert", rows)
    written, outcomes = apply("upsert", rows, badRows="bad-orders")
    assert (written.sent, written.bad, outcomes) == (1, 1, {"b": "updated"})
    assert producer.find("bad-orders", "none") is None


def test_upsert_of_ids_that_come_twice(producer: Producer, apply: Apply) -> None:
    """The later row of a task counts, also where the first has sent the message."""
    written, _ = apply("upsert", {"id": ["new", "a", "new", "a"], "body": ["1", "1", "2", "2"], "delay": [60.0] * 4})
    assert (written.sent, written.duplicates) == (4, 0)
    assert [body_of(producer, id) for id in ("new", "a")] == [b"2", b"2"]


def test_outcomes_that_cannot_be_written(producer: Producer, apply: Apply, tmp_path: Path) -> None:
    """The task fails before it has changed anything: another try finds all as it was."""
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="Not a directory"):
        apply("cancel", {"id": ["a"]}, outcomes=f"{tmp_path}/file/outcomes")
    assert producer.find("orders", "a")


def test_a_task_without_outcomes_leaves_no_file(apply: Apply, tmp_path: Path) -> None:
    """All of its rows are bad."""
    written, _ = apply("cancel", {"id": ["\n"]}, badRows=f"{tmp_path}/bad/")
    assert (written.bad, written.outcome_file, list((tmp_path / "outcomes").iterdir())) == (1, None, [])


@pytest.mark.parametrize("receipt", ["x", None, '["orders","g","","1-1","id",1e400,1]', "[" * 3_000])
def test_a_bad_receipt_is_set_aside_with_its_reason(apply: Apply, receipt: str, tmp_path: Path) -> None:
    """Its own error, which the column has, is there, too; the others are nacked."""
    rows = {"receipt": [receipt, '["orders","g","","1-1","other",1,1]'], "error": ["no page", "no page"]}
    written, outcomes = apply("nack", rows, badRows=f"{tmp_path}/bad/")
    assert (written.bad, outcomes) == (1, {"other": "stale"})
    line = json.loads(Path(written.bad_file or "").read_text())
    assert line["error"].startswith("receipt must be the receipt of a row of a stream; got ")
    assert line["row_error"] == "no page"


def _kill(redis_url: str, prefix: str, *ids: str) -> None:
    """Rejects messages that are sent for it, due now."""
    for keys in [ShardKeys(prefix, "orders", shard) for shard in ("", "0.1", "1.1", "2.1")]:
        queue = Queue(Connection(redis_url), keys)
        queue.join("g")
        for delivery in queue.read("g", limit=10):
            if delivery.id in ids:
                queue.nack(delivery, rejected=True)


def test_dead_letters(producer: Producer, apply: Apply, redis_url: str, prefix: str) -> None:
    """Dead letters are replayed or purged, by the columns of a table."""
    producer.send_many("orders", [Message(body="x", id=id) for id in ("d1", "d2", "d3")])
    _kill(redis_url, prefix, "d1", "d2", "d3")
    assert apply("replay", {"id": ["d1", "a"], "group": ["g", "g"]})[1] == {"d1": "replayed", "a": "unknown"}
    long_ago = pa.array([datetime(2000, 1, 1, tzinfo=UTC)] * 2, pa.timestamp("us", tz="UTC"))
    assert apply("purge", {"id": ["d2", "d1"], "died_at": long_ago}, group="g")[1] == {"d2": "unknown", "d1": "unknown"}
    written, outcomes = apply("purge", {"id": ["d2", "nothing"]}, group="g")
    assert outcomes == {"d2": "purged", "nothing": "unknown"}
    assert (written.sent, written.duplicates) == (1, 1)
    assert producer.find("orders", "d2") is None


def test_deliveries(client: redis.Redis, apply: Apply, redis_url: str, prefix: str) -> None:
    """Rows of a stream are nacked and rejected by their receipts."""
    with Producer(settings=ProducerSettings.load(redis_url=redis_url, prefix=prefix)) as producer:
        queue = Queue(Connection(redis_url), ShardKeys(prefix, "orders"))
        queue.join("g")
        producer.send_many("orders", [Message(body="x", id=id) for id in "abc"])
        receipts = [receipt_of(d.topic, "g", d.shard, d.entry) for d in queue.read("g")]
    rows: Rows = {"receipt": receipts[:1], "delay": [60], "error": ["not yet"]}
    # A receipt names its topic: the rows of a stream of several need no column of it.
    assert apply("nack", rows, topic="other")[1] == {"a": "retry"}
    assert apply("reject", {"receipt": [receipts[1], receipts[0]]})[1] == {"b": "garbage", "a": "stale"}
    assert client.zrange(queue.keys.of("garbage"), 0, -1) == [b"g/b"]
    with pytest.raises(BadRow, match="receipt must be the receipt of a row of a stream; got 'x'"):
        apply("nack", {"receipt": ["x"]})
    assert queue.connection.call(managing.promote(queue.keys, limit=10)).count == 0


@pytest.mark.parametrize("option", ["maxRowsPerSecond", "rememberDays"])
def test_what_needs_a_topic(option: str) -> None:
    """The rate and the memory are kept beside a topic."""
    with pytest.raises(InvalidInput, match=f"option {option} needs the option topic"):
        WriteOptions.of({option.lower(): "5", "url": "redis://localhost"})


def test_a_rate_for_all_tasks(apply: Apply, client: redis.Redis, prefix: str) -> None:
    """Tasks of a job share its rate, and leave no key that does not expire."""
    began = datetime.now(UTC)
    for _ in range(2):
        apply("send", {"body": ["x"] * 60}, maxRowsPerSecond=100)
    assert datetime.now(UTC) - began > timedelta(seconds=1)
    assert client.ttl(ShardKeys(prefix, "orders").of("pace")) > 0
