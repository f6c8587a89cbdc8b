"""A topic as a table, without Spark: ranges, options, columns."""

import asyncio
import pickle
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition

from lisa_common.client.connection import Connection
from lisa_common.model.keys import ShardKeys
from lisa_common.model.policy import Policy
from lisa_common.model.sharding import Layout
from lisa_common.protocol.call import command
from lisa_producer.spark import rows
from lisa_producer.spark.options import SnapshotOptions
from lisa_producer.spark.rows import MESSAGE_SCHEMA, check_schema
from lisa_producer.spark.snapshot import SnapshotReader
from support.proxy import Proxy
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


def _reader(queue: Queue, names: tuple[str, ...] = ALL, **options: Any) -> SnapshotReader:
    url = queue.connection._server._address.shown
    given = {"url": url, "prefix": queue.keys.prefix, "topic": "orders"}
    return SnapshotReader(SnapshotOptions.of({**given, **{n.lower(): str(v) for n, v in options.items()}}), names)


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
    assert len(_reader(queue, state="waiting").partitions()) == 1
    assert len(_reader(queue, state="waiting", partitionRows=2).partitions()) >= 2
    for size in (1, 2, 100):
        found = _ids(_reader(queue, partitionRows=size))
        assert sorted(found) == sorted([*EVERY, "0.1 1", "0.1 2", "1.1 1", "1.1 2"])


@pytest.mark.parametrize("options", [{}, {"ids": "w1,w2,w3,new-1,new-2,new-3"}, {"state": "waiting"}])
@pytest.mark.parametrize("size", [1, 100])
def test_partitions_of_an_earlier_look(queue: Queue, options: dict[str, str], size: int) -> None:
    """Spark keeps them: they have what came later, too, wherever the topic puts it, each message once."""
    reader = _reader(queue, partitionRows=size, **options)
    empty = _reader(queue, topic="empty", partitionRows=size, **options)
    partitions, partitions_of_empty = reader.partitions(), empty.partitions()
    for topic in ("orders", "empty"):
        layout = Layout(queue.keys.prefix, topic, Policy(shards=2, former=(1,)))
        queue.connection.call(command("HSET", queue.keys.of("topics"), topic, layout.policy.dump()))
        for n in (1, 2, 3):
            keys = layout.homes(f"new-{n}")[0]
            Queue(queue.connection, keys, now_ms=queue.now_ms).send_all([outgoing(f"new-{n}", due=f"+{n}500")])
    expected = [row["id"] for row in _rows(_reader(queue, **options))]
    assert len(expected) >= 6
    assert sorted(row["id"] for row in _rows(reader, partitions)) == sorted(expected)
    assert sorted(row["id"] for row in _rows(empty, partitions_of_empty)) == ["new-1", "new-2", "new-3"]


@pytest.mark.parametrize("size", [1, 3, 100])
def test_entries_of_an_earlier_look(queue: Queue, size: int) -> None:
    """Where groups stand is found when a task runs."""
    queue.send_all([outgoing(f"r{n}") for n in range(10)])
    readers = [_reader(queue, state=state, group="g", partitionRows=size) for state in ("ready", "delivered")]
    before = [reader.partitions() for reader in readers]
    queue.send_all([outgoing(f"r{n}") for n in range(10, 15)])
    queue.read("g", limit=7)
    ready, delivered = ([row["id"] for row in _rows(*each)] for each in zip(readers, before, strict=True))
    assert sorted(delivered) == sorted(["gone", *(f"r{n}" for n in range(7))])
    assert sorted(ready) == sorted(f"r{n}" for n in range(7, 15))


def test_an_unknown_topic_is_empty(queue: Queue) -> None:
    """Nothing is read, and Spark's own partition is empty."""
    reader = _reader(queue, topic="nothing")
    assert _rows(reader) == []
    assert list(reader.read(InputPartition(None))) == []


def _at(seconds: float) -> str:
    return (START + timedelta(seconds=seconds)).isoformat()


EVERY = ["w1", "w2", "w3", "later", "rejected", "expired"]

SELECTIONS: dict[str, tuple[dict[str, str], list[str]]] = {
    "from": ({"state": "waiting", "dueFrom": _at(3)}, ["w2", "w3"]),
    "until": ({"state": "waiting", "dueUntil": _at(3)}, ["w1"]),
    "range": ({"dueFrom": _at(3), "dueUntil": _at(4)}, ["w2"]),
    "retry by due": ({"state": "retry", "dueFrom": _at(5), "dueUntil": _at(5.001)}, ["later"]),
    "dead by due": ({"dueFrom": _at(0), "dueUntil": _at(0.001)}, ["rejected"]),
    "died": ({"diedFrom": _at(1.5)}, ["expired"]),
    "died until": ({"diedFrom": _at(1), "diedUntil": _at(1.001)}, ["rejected"]),
    "empty range": ({"diedFrom": _at(9), "diedUntil": _at(1)}, []),
    "zone": ({"state": "waiting", "dueUntil": "2000-01-01T00:00:00+02:00"}, []),
    "group": ({"group": "g"}, ["later", "rejected"]),
    "no group": ({"group": "h"}, []),
    "reason": ({"reason": "nack"}, ["later"]),
    "unknown reason": ({"reason": "unknown"}, ["expired"]),
    "ids": ({"ids": "w2, rejected, nothing, later, w2"}, ["w2", "rejected", "later"]),
    "ids of a state": ({"ids": "w2,rejected", "state": "garbage"}, ["rejected"]),
    "ids, few at a time": ({"ids": "w2,rejected,later", "partitionRows": "1"}, ["w2", "rejected", "later"]),
    "limit": ({"limit": "4", "partitionRows": "1"}, ["w1", "w2", "w3", "later"]),
    "limit of ids": ({"limit": "1", "ids": "w3,w1"}, ["w3"]),
    "limit of no ids": ({"limit": "1", "ids": "[]"}, []),
}


@pytest.mark.parametrize(("options", "ids"), SELECTIONS.values(), ids=SELECTIONS.keys())
def test_options_select_rows(queue: Queue, options: dict[str, str], ids: list[str]) -> None:
    """A message that passes all options is a row, as it is without them."""
    every = {row["id"]: row for row in _rows(_reader(queue))}
    assert _rows(_reader(queue, **options)) == [every[id] for id in ids]


def test_the_server_leaves_out_what_is_not_selected(queue: Queue) -> None:
    """Bodies that no column needs, and records of other groups and reasons, are not sent."""
    queue.send_all([outgoing(f"big{n}", body=b"x" * 100_000, headers={"k": "v"}) for n in range(50)])
    for delivery in queue.read("g", limit=100):
        queue.nack(delivery, rejected=True)

    def sent_bytes(names: tuple[str, ...], **options: str) -> int:
        before = _server_sent(queue)
        assert _rows(_reader(queue, names, state="garbage", **options)) or options
        return _server_sent(queue) - before

    assert sent_bytes(ALL) > 5_000_000
    assert sent_bytes(("id", "headers", "due_at")) < 60_000
    assert sent_bytes(ALL, reason="expired") < 60_000
    assert sent_bytes(ALL, group="h") < 60_000
    headers = {row["id"]: row["headers"] for row in _rows(_reader(queue, ("id", "headers"), state="garbage"))}
    assert dict(headers["big7"]) == {"k": "v"}


def _server_sent(queue: Queue) -> int:
    info = queue.connection.call(command("INFO", "stats")).decode()
    return int(info.split("total_net_output_bytes:")[1].split()[0])


def test_schema_matches_rows() -> None:
    """The schema and the rows name the same columns, in the same order."""
    assert list(ALL) == list(rows.MessageRow._fields)


async def test_a_lost_reply_fails_no_read_of_ids(queue: Queue, redis_url: str) -> None:
    """The task asks again, as those of all other reads do."""
    async with Proxy(int(redis_url.rpartition(":")[2].partition("/")[0])) as proxy:
        reader = _reader(queue, ids="w1,w3", url=proxy.url)
        proxy.lose_reply_to(b"w3")
        assert await asyncio.to_thread(_ids, reader) == ["w1", "w3"]
        assert proxy.lost == 1
