"""What a stream asks of the server for its rows, and what it does where a batch is not whole, without Spark."""

from collections.abc import Iterator

import pytest

pytest.importorskip("pyspark.sql.streaming.datasource", reason="needs PySpark 4.2")

from lisa_common.model.delivery import Entry
from lisa_common.model.keys import topics_key
from lisa_common.model.policy import Policy
from lisa_common.protocol import consuming
from lisa_producer import Message
from lisa_producer.spark.stream import Offset
from spark.test_group_reader import Topic, _plan, _run
from support import count_calls

ROWS = 6_000
PAGES = ROWS / 1_000


@pytest.fixture
def topic(redis_url: str, prefix: str) -> Iterator[Topic]:
    """A topic of the test's own."""
    topic = Topic(redis_url, prefix)
    yield topic
    topic.close()


def _read_one(topic: Topic, end: Offset) -> Entry:
    """Reads one entry more for the consumer of an offset."""
    ((_, entries),) = topic.producer._connection.call(
        consuming.read([topic.keys], "g", end["consumer"], limit=1, block_ms=None)
    )
    return entries[0]


def _nack(topic: Topic, entry: Entry) -> None:
    nacks = [consuming.Nack(entry, "no", delay_ms=60_000)]
    topic.producer._connection.call(consuming.nack(topic.keys, "g", nacks, Policy()))


def test_calls_are_for_pages_not_for_rows(topic: Topic) -> None:
    """No command is made for each row, and no lease is renewed that is fresh."""
    # So long that no round of renewals begins, however slow the machine is.
    topic.client.hset(topics_key(topic.keys.prefix), "orders", Policy(visibility_ms=3_600_000).dump())
    topic.send(*(f"m{number}" for number in range(ROWS)))
    reader = topic.reader()
    start = reader.initialOffset()
    topic.client.config_resetstat()
    end = _plan(reader, start)
    assert len(_run(reader, start, end)) == ROWS
    reader.commit(end)
    assert topic.client.hlen(topic.keys.of("messages")) == 0
    for name, most in {
        "xreadgroup": PAGES,
        "xrange": PAGES,
        "hmget": 2 * PAGES,
        "xack": PAGES,
        "xpending": 2 * PAGES,
        # A server that has not seen a script is asked twice.
        "evalsha": PAGES + 10 + count_calls(topic.client, "script|load"),
        "hget": 110,
        "xclaim": 0,
    }.items():
        assert count_calls(topic.client, name) <= most, name


def test_entries_of_others_between(topic: Topic) -> None:
    """A range has only the query's own entries, wherever another consumer's lie."""
    ids = [f"m{number:04}" for number in range(2_600)]
    topic.send(*ids)
    first = topic.reader(maxRows=1_200)
    start = first.initialOffset()
    _plan(first, start)
    with topic.consumer() as other:
        theirs = [each.id for each in other.read(limit=100)]
        assert theirs == ids[1_200:1_300]
        again = topic.reader(partitionRows=2_600)
        assert _run(again, start, _plan(again, start)) == ids[:1_200] + ids[1_300:]


@pytest.mark.parametrize("more", [0, 1])
def test_a_row_nacked_meanwhile_is_not_acked(topic: Topic, more: int) -> None:
    """The others are acked, whether or not the consumer holds as many as before."""
    topic.send(*"abcd")
    reader = topic.reader(maxRows=3)
    start = reader.initialOffset()
    end = _plan(reader, start)
    assert _run(reader, start, end) == list("abc")
    _nack(topic, reader._read[topic.keys][1])
    for _ in range(more):
        _read_one(topic, end)
    reader.commit(end)
    assert topic.client.zrange(topic.keys.of("retry"), 0, -1) == [b"g/b"]
    assert sorted(topic.client.hkeys(topic.keys.of("messages"))) == [b"b", b"d"]


@pytest.mark.parametrize("more", [0, 1])
def test_a_row_nacked_meanwhile_is_not_read_again(topic: Topic, more: int) -> None:
    """A task that runs again reads the rows that are pending still."""
    topic.send(*"abcd")
    reader = topic.reader(maxRows=3)
    start = reader.initialOffset()
    end = _plan(reader, start)
    (partition,) = reader.partitions(start, end)
    _nack(topic, reader._read[topic.keys][1])
    for _ in range(more):
        _read_one(topic, end)
    rows = [row["id"] for batch in reader.read(partition) for row in batch.to_pylist()]
    assert rows == ["a", "c"]


def test_large_messages_among_small_ones(topic: Topic) -> None:
    """Records of any sizes are read, each once."""
    topic.client.hset(topics_key(topic.keys.prefix), "orders", "{}")
    sizes = [10] * 300 + [900_000] * 12 + [10] * 900 + [900_000] * 6
    topic.producer.send_many("orders", [Message(body=b"x" * size, id=f"m{n:04}") for n, size in enumerate(sizes)])
    reader = topic.reader()
    start = reader.initialOffset()
    end = _plan(reader, start)
    (partition,) = reader.partitions(start, end)
    batches = list(reader.read(partition))
    found = [(row["id"], len(row["body"])) for batch in batches for row in batch.to_pylist()]
    assert found == [(f"m{n:04}", size) for n, size in enumerate(sizes)]
    reader.commit(end)
    assert topic.pending() == 0


def test_only_leases_that_have_aged_are_renewed(topic: Topic) -> None:
    """A lease that was just taken is not renewed."""
    topic.send(*"ab")
    reader = topic.reader(maxRows=1)
    start = reader.initialOffset()
    end = _plan(reader, start)
    key = topic.keys.of("ready")
    topic.client.xclaim(key, "g", end["consumer"], 0, [end["topics"]["orders"][""]], idle=20_000, justid=True)
    _read_one(topic, end)
    reader._run(reader._pending(topic.keys, end["consumer"]).renew(5_000))
    renewed, fresh = topic.client.xpending_range(key, "g", "-", "+", 2)
    assert renewed["time_since_delivered"] < 5_000
    topic.client.config_resetstat()
    reader._run(reader._pending(topic.keys, end["consumer"]).renew(5_000))
    assert count_calls(topic.client, "xclaim") == 0
    assert fresh["times_delivered"] == 1
