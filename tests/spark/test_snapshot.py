"""A topic as a table, without Spark: ranges, filters, columns."""

import pickle
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, InputPartition, LessThan, Not

from lisa_common.client.connection import Connection
from lisa_common.model.keys import ShardKeys
from lisa_common.model.policy import Policy
from lisa_common.model.sharding import Layout
from lisa_common.protocol.call import command
from lisa_producer.spark import rows
from lisa_producer.spark.options import SnapshotOptions
from lisa_producer.spark.rows import MESSAGE_SCHEMA, check_schema
from lisa_producer.spark.snapshot import SnapshotReader, _FilteredReader
from support.queue import EPOCH_MS, Queue, outgoing

ALL = check_schema(MESSAGE_SCHEMA)
START = datetime.fromtimestamp(EPOCH_MS / 1000, UTC)


@pytest.fixture
def queue(redis_url: str, prefix: str) -> Queue:
    """A topic with a controlled clock: three messages wait, one is to be retried, two are dead."""
    queue = Queue(Connection(redis_url), ShardKeys(prefix, "orders"))
    queue.join("g")
    queue.send_all([outgoing("later"), outgoing("rejected", headers={"k": "v"}), outgoing("gone", ttl_ms=10)])
    later, rejected, _ = queue.read("g")
    queue.nack(later, error="not yet", delay_ms=5_000)
    queue.advance(1_000)
    queue.nack(rejected, error="never: žluť", rejected=True)
    queue.connection.call(command("ZADD", queue.keys.of("garbage"), queue.now_ms + 1_000, "/expired"))
    queue.send_all([outgoing(f"w{n}", due=f"+{n}000", priority=n) for n in (1, 2, 3)])
    return queue


def _reader(queue: Queue, names: tuple[str, ...] = ALL, **options: Any) -> _FilteredReader:
    url = queue.connection._server._address.shown
    given = {"url": url, "prefix": queue.keys.prefix, "topic": "orders"}
    return _FilteredReader(SnapshotOptions.of({**given, **{n.lower(): str(v) for n, v in options.items()}}), names)


def _rows(reader: SnapshotReader, partitions: Sequence[InputPartition] | None = None) -> list[dict[str, Any]]:
    table = [
        batch
        for partition in (reader.partitions() if partitions is None else partitions)
        # As Spark hands them to its tasks.
        for batch in pickle.loads(pickle.dumps(reader)).read(pickle.loads(pickle.dumps(partition)))  # noqa: S301
    ]
    return pa.Table.from_batches(table).to_pylist() if table else []


def _ids(reader: SnapshotReader) -> list[str]:
    return [row["id"] for row in _rows(reader)]


def test_all_fields(queue: Queue) -> None:
    """Each message is a row, with reason, error, attempts and times (of dead letters, too)."""
    found = {row["id"]: row for row in _rows(_reader(queue))}
    assert list(found) == EVERY
    waiting, retry, garbage = found["w2"], found["later"], found["rejected"]
    assert (waiting["state"], waiting["group"], waiting["body"], waiting["priority"]) == ("waiting", None, b"body", 2)
    assert (waiting["sent_at"], waiting["due_at"]) == (START + timedelta(seconds=1), START + timedelta(seconds=3))
    assert (retry["state"], retry["group"], retry["attempts"], retry["error"]) == ("retry", "g", 1, "not yet")
    assert (retry["reason"], retry["due_at"], retry["died_at"]) == ("nack", START + timedelta(seconds=5), None)
    assert (garbage["state"], garbage["reason"], garbage["error"]) == ("garbage", "rejected", "never: žluť")
    assert (garbage["due_at"], garbage["died_at"]) == (START, START + timedelta(seconds=1))
    assert dict(garbage["headers"]) == {"k": "v"}
    expired = found["expired"]
    assert (expired["group"], expired["reason"], expired["body"]) == (None, "unknown", None)
    assert {row["topic"] for row in found.values()} == {"orders"}


def test_states_and_columns(queue: Queue) -> None:
    """The option selects states, a schema selects columns."""
    assert _ids(_reader(queue, state="garbage")) == ["rejected", "expired"]
    assert _ids(_reader(queue, state="retry, waiting")) == ["w1", "w2", "w3", "later"]
    assert _rows(_reader(queue, ("died_at", "id"), state="garbage"))[0] == {
        "died_at": START + timedelta(seconds=1),
        "id": "rejected",
    }


def test_partitions(queue: Queue) -> None:
    """A state is cut into ranges of about `partitionRows` messages."""
    reader = _reader(queue, state="waiting", partitionRows=1)
    partitions = reader.partitions()
    assert [[row["id"] for row in _rows(reader, [partition])] for partition in partitions] == [["w1"], ["w2"], ["w3"]]
    assert len(_reader(queue, partitionRows=2).partitions()) == 4


def test_shards_make_one_table(queue: Queue) -> None:
    """Former shards are read, too."""
    layout = Layout(queue.keys.prefix, "orders", Policy(shards=2, former=(1,)))
    queue.connection.call(command("HSET", queue.keys.of("topics"), "orders", layout.policy.dump()))
    for keys in layout.shards:
        shard = Queue(queue.connection, keys, now_ms=queue.now_ms)
        shard.send_all([outgoing(f"{keys.shard} {n}", due=f"+{n}000") for n in (1, 2)])
    assert len(_reader(queue, state="waiting").partitions()) == 3
    assert sorted(_ids(_reader(queue))) == sorted([*EVERY, "0.1 1", "0.1 2", "1.1 1", "1.1 2"])


def test_an_unknown_topic_is_empty(queue: Queue) -> None:
    """Nothing is read, and Spark's own partition is empty."""
    reader = _reader(queue, topic="nothing")
    assert _rows(reader) == []
    assert list(reader.read(InputPartition(None))) == []


def _at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


EVERY = ["w1", "w2", "w3", "later", "rejected", "expired"]

FILTERS: dict[str, tuple[list[Filter], list[str]]] = {
    "state": ([EqualTo(("state",), "garbage")], ["rejected", "expired"]),
    "states": ([In(("state",), ("retry", "garbage", "ready"))], ["later", "rejected", "expired"]),
    "no state": ([EqualTo(("state",), "ready")], []),
    "from": ([EqualTo(("state",), "waiting"), GreaterThanOrEqual(("due_at",), _at(3))], ["w2", "w3"]),
    "until": ([LessThan(("due_at",), _at(4)), EqualTo(("state",), "waiting")], ["w1", "w2", "w3"]),
    "finer than ms": ([EqualTo(("state",), "waiting"), LessThan(("due_at",), _at(2.9999))], ["w1", "w2"]),
    "retry by due": ([GreaterThan(("due_at",), _at(4.5))], ["later", "rejected", "expired"]),
    "died": ([GreaterThan(("died_at",), _at(1.5))], ["expired"]),
    "died at": ([EqualTo(("died_at",), _at(1))], ["rejected"]),
    "empty range": ([LessThan(("died_at",), _at(0)), GreaterThan(("died_at",), _at(9))], []),
    "others": (
        [EqualTo(("id",), "w1"), Not(EqualTo(("state",), "retry"))],
        EVERY,
    ),
}


@pytest.mark.parametrize(("filters", "ids"), FILTERS.values(), ids=FILTERS.keys())
def test_filters(queue: Queue, filters: list[Filter], ids: list[str]) -> None:
    """States and times narrow the read; filters finer than ms, or unknown ones, read a superset."""
    reader = _reader(queue)
    assert list(reader.pushFilters(filters)) == filters, "Spark looks at each row once more"
    assert _ids(reader) == ids


def test_schema_matches_rows() -> None:
    """The schema and the rows name the same columns, in the same order."""
    assert list(ALL) == list(rows.MessageRow.__dataclass_fields__)
