"""A topic as a stream, without Spark: offsets, acks, leases, redelivery."""

import asyncio
import pickle
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
import redis

pytest.importorskip("pyspark.sql.streaming.datasource", reason="needs PySpark 4.2")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from lisa_common.client.connection import Connection
from lisa_common.errors import InvalidInput, OutcomeUnknown
from lisa_common.model.keys import ShardKeys, topics_key
from lisa_common.model.policy import Policy
from lisa_common.model.sharding import Layout
from lisa_common.protocol import managing
from lisa_common.protocol.call import Call, Unfinished, command
from lisa_common.protocol.registry import Topics
from lisa_consumer import Consumer
from lisa_consumer.settings import ConsumerSettings
from lisa_producer import Message, Producer, ProducerSettings
from lisa_producer.spark.options import StreamOptions
from lisa_producer.spark.pending_entries import FIRST, PendingEntries, StreamReset
from lisa_producer.spark.rows import MESSAGE_SCHEMA, check_schema
from lisa_producer.spark.stream import GroupReader, Offset
from support import wait_until
from support.proxy import Proxy

ALL = check_schema(MESSAGE_SCHEMA)


class Topic:
    """A topic, and readers as Spark creates them."""

    def __init__(self, url: str, prefix: str) -> None:
        self.url = url
        self.keys = ShardKeys(prefix, "orders")
        self.producer = Producer(url, settings=ProducerSettings.load(redis_url=url, prefix=prefix))
        self.client = redis.Redis.from_url(url, protocol=2)
        self.readers: list[GroupReader] = []

    def send(self, *ids: str, **options: Any) -> None:
        """Sends messages, due now."""
        self.producer.send_many("orders", [Message(body=f"body {id}", id=id, **options) for id in ids])

    def reader(self, **options: Any) -> GroupReader:
        """A reader as the group `g`."""
        given = {"url": self.url, "prefix": self.keys.prefix, "topic": "orders", "group": "g"} | options
        reader = GroupReader(StreamOptions.of({name.lower(): str(value) for name, value in given.items()}), ALL)
        self.readers.append(reader)
        return reader

    def consumer(self, group: str = "g") -> Consumer:
        """A plain consumer."""
        settings = ConsumerSettings.load(redis_url=self.url, prefix=self.keys.prefix)
        return Consumer("orders", group=group, settings=settings)

    def pending(self, group: str = "g") -> int:
        """How many deliveries are not settled."""
        (found,) = [info for info in self.client.xinfo_groups(self.keys.of("ready")) if info["name"] == group.encode()]
        return int(found["pending"])

    def reclaim_all(self, group: str = "g") -> int:
        """Reclaims all deliveries, as a manager does after their leases."""
        policy = Policy(visibility_ms=100)
        wait_until(lambda: self._oldest_idle(group) > 100, what="the leases to run out")
        call = managing.reclaim(self.keys, group, policy, cursor="0-0", limit=1000)
        return self.producer._connection.call(call).count

    def _oldest_idle(self, group: str) -> int:
        return int(self.client.xpending_range(self.keys.of("ready"), group, "-", "+", 1)[0]["time_since_delivered"])

    def close(self) -> None:
        """Closes the clients and readers."""
        for reader in self.readers:
            reader.stop()
        self.producer.close()
        self.client.close()


@pytest.fixture
def topic(redis_url: str, prefix: str) -> Iterator[Topic]:
    """A topic of the test's own."""
    topic = Topic(redis_url, prefix)
    yield topic
    topic.close()


def _plan(reader: GroupReader, start: Offset, limit: ReadLimit | None = None) -> Offset:
    return reader.latestOffset(start, limit or reader.getDefaultReadLimit())


def _run(reader: GroupReader, start: Offset, end: Offset) -> list[str]:
    """The ids of a micro-batch, read as tasks do."""
    batches = [
        batch
        for partition in reader.partitions(start, end)
        for batch in pickle.loads(pickle.dumps(reader)).read(pickle.loads(pickle.dumps(partition)))  # noqa: S301
    ]
    return [row["id"] for row in pa.Table.from_batches(batches).to_pylist()] if batches else []


def test_rows(topic: Topic) -> None:
    """A message comes with its body, headers, times and attempt."""
    topic.send("a", headers={"k": "v"})
    reader = topic.reader()
    start = reader.initialOffset()
    end = _plan(reader, start)
    (partition,) = reader.partitions(start, end)
    (row,) = next(reader.read(partition)).to_pylist()
    assert (row["id"], row["body"], row["attempts"], row["state"]) == ("a", b"body a", 1, "delivered")
    assert (row["group"], dict(row["headers"])) == ("g", {"k": "v"})
    assert row["due_at"] == row["sent_at"]


def test_batches_are_bounded_and_cut(topic: Topic) -> None:
    """A batch has at most maxRows rows, a partition about partitionRows; the next batch follows."""
    topic.send(*"abcdefg")
    reader = topic.reader(maxRows=5, partitionRows=2)
    start = reader.initialOffset()
    end = _plan(reader, start)
    assert len(reader.partitions(start, end)) == 3
    assert _run(reader, start, end) == list("abcde")
    after = _plan(reader, end)
    assert _run(reader, end, after) == ["f", "g"]
    assert _plan(reader, after) == after


@pytest.mark.parametrize("rows", [1, 3, 100])
def test_shards_make_one_stream(topic: Topic, prefix: str, rows: int) -> None:
    """All shards of a resharded topic are read and acked, and none starves."""
    topic.client.hset(f"{prefix}:topics", "orders", Policy(shards=3).dump())
    ids = {f"m{number}" for number in range(10)}
    topic.send(*sorted(ids))
    topic.client.hset(f"{prefix}:topics", "orders", Policy(shards=2, former=(3,)).dump())
    with Producer(settings=ProducerSettings.load(redis_url=topic.url, prefix=prefix)) as other:
        other.send_many("orders", [Message(body="x", id=f"n{number}") for number in range(10)])
    ids |= {f"n{number}" for number in range(10)}
    reader, found = topic.reader(maxRows=rows), list[str]()
    start = reader.initialOffset()
    for _ in range(60):
        end = _plan(reader, start)
        batch = _run(reader, start, end)
        assert len(batch) <= rows
        found += batch
        start = end
    reader.commit(start)
    assert sorted(found) == sorted(ids)
    layout = Layout(prefix, "orders", Policy(shards=2, former=(3,)))
    assert not any(topic.client.hlen(keys.of("messages")) for keys in layout.served)


def test_shards_read_up_to_now(topic: Topic, prefix: str) -> None:
    """Messages after the start of the query are for the next run, in all shards."""
    topic.client.hset(f"{prefix}:topics", "orders", Policy(shards=3).dump())
    topic.send(*"abcdefgh")
    reader = topic.reader()
    reader.prepareForTriggerAvailableNow()
    topic.send(*"ijklmnop")
    start = reader.initialOffset()
    end = _plan(reader, start, ReadAllAvailable())
    assert sorted(_run(reader, start, end)) == list("abcdefgh")
    assert _plan(reader, end, ReadAllAvailable()) == end


def test_acked_when_done_and_no_earlier(topic: Topic) -> None:
    """Entries are pending until Spark commits them, or continues after them."""
    topic.send(*"abc")
    reader = topic.reader(maxRows=2)
    start = reader.initialOffset()
    end = _plan(reader, start)
    _run(reader, start, end)
    assert topic.pending() == 2
    reader.commit(end)
    assert topic.pending() == 0
    after = _plan(reader, end)
    _run(reader, end, after)
    assert topic.pending() == 1
    _plan(reader, after)
    assert topic.pending() == 0
    assert topic.client.hlen(topic.keys.of("messages")) == 0


def test_a_batch_is_the_same_when_done_again(topic: Topic) -> None:
    """After a restart, a planned, uncommitted batch has the same rows."""
    topic.send(*"abcd")
    first = topic.reader(maxRows=3)
    start = first.initialOffset()
    end = _plan(first, start)
    assert _run(first, start, end) == list("abc")
    first.stop()
    again = topic.reader(maxRows=3)
    assert _run(again, again.initialOffset(), end) == list("abc")
    again.commit(end)
    assert _run(again, end, _plan(again, end)) == ["d"]


def test_unplanned_entries_come_first(topic: Topic) -> None:
    """A query that died before it stored its offset gets its entries again."""
    topic.send(*"abcd")
    first = topic.reader(maxRows=1)
    start = first.initialOffset()
    noted = _plan(first, start)
    _run(first, start, noted)
    _plan(first, noted)
    again = topic.reader()
    end = _plan(again, noted)
    assert _run(again, noted, end) == list("bcd")


def test_reclaimed_while_the_query_was_away(topic: Topic) -> None:
    """Reclaimed entries leave the batch and come again, without an attempt spent; nothing is lost."""
    topic.send(*"ab")
    first = topic.reader()
    start = first.initialOffset()
    end = _plan(first, start)
    first.stop()
    assert topic.reclaim_all() == 2
    again = topic.reader()
    assert _run(again, start, end) == []
    again.commit(end)
    after = _plan(again, end)
    (partition,) = again.partitions(end, after)
    assert [(row["id"], row["attempts"]) for row in next(again.read(partition)).to_pylist()] == [("a", 1), ("b", 1)]


def test_shared_group(topic: Topic) -> None:
    """Another consumer of the group has other messages, and the query's acks leave them alone."""
    topic.send(*"abcd")
    with topic.consumer() as other:
        (theirs,) = other.read(limit=1)
        reader = topic.reader()
        start = reader.initialOffset()
        end = _plan(reader, start)
        assert _run(reader, start, end) == list("bcd")
        reader.commit(end)
        assert topic.pending() == 1
        assert other.ack(theirs) == ["acked"]


def test_two_queries_of_one_group(topic: Topic) -> None:
    """Each has its own consumer: neither acks the other's entries."""
    topic.send(*"abcd")
    one, two = topic.reader(maxRows=2), topic.reader(maxRows=2)
    one_start, two_start = one.initialOffset(), two.initialOffset()
    one_end = _plan(one, one_start)
    two_end = _plan(two, two_start)
    two.commit(two_end)
    assert _run(one, one_start, one_end) == ["a", "b"]


def test_undeliverable_entries(topic: Topic) -> None:
    """Cancelled, expired, damaged, foreign entries are no rows; each is settled as for any consumer (promise 8)."""
    topic.send("cancelled", "damaged", "good")
    topic.send("expired", ttl=0.001)
    topic.client.xadd(topic.keys.of("ready"), {"foreign": "entry"})
    reader = topic.reader()
    start = reader.initialOffset()
    end = _plan(reader, start)
    topic.producer.cancel("orders", "cancelled")
    topic.client.hset(topic.keys.of("messages"), "damaged", b"\x07rubbish")
    assert _run(reader, start, end) == ["good"]
    assert topic.pending() == 1
    reader.commit(end)
    garbage = topic.client.zrange(topic.keys.of("garbage"), 0, -1)
    assert sorted(garbage) == [b"g/damaged", b"g/expired"]


def test_available_now_ends(topic: Topic) -> None:
    """Messages that become ready during the run stay unread, without an attempt."""
    topic.send(*"abc")
    reader = topic.reader(maxRows=2)
    reader.prepareForTriggerAvailableNow()
    topic.send("late")
    found, at = [], reader.initialOffset()
    while (end := _plan(reader, at, ReadAllAvailable() if found else ReadMaxRows(2))) != at:
        found += _run(reader, at, end)
        at = end
    assert found == list("abc")
    assert topic.pending() == 0
    again = topic.reader()
    assert _run(again, at, _plan(again, at)) == ["late"]


def test_the_trigger_once(topic: Topic) -> None:
    """It is refused: Spark never tells whether its batch was done, and nothing could be acked."""
    reader = topic.reader()
    with pytest.raises(InvalidInput, match=r"trigger must be availableNow=True, which .*; got 'once=True'"):
        _plan(reader, reader.initialOffset(), ReadAllAvailable())


def test_leases_are_kept_while_a_batch_runs(topic: Topic) -> None:
    """No other consumer gets the batch's messages, however long Spark takes."""
    topic.client.hset(f"{topic.keys.prefix}:topics", "orders", Policy(visibility_ms=150).dump())
    topic.send("a")
    reader = topic.reader()
    start = reader.initialOffset()
    reader.partitions(start, _plan(reader, start))
    (held,) = topic.client.xpending_range(topic.keys.of("ready"), "g", "-", "+", 1)
    ages: list[int] = []

    def renewed_often() -> bool:
        (found,) = topic.client.xpending_range(topic.keys.of("ready"), "g", "-", "+", 1)
        assert found["message_id"] == held["message_id"]
        ages.append(found["time_since_delivered"])
        return sum(later < earlier for earlier, later in pairwise(ages)) >= 4

    wait_until(renewed_often, what="four renewals")
    assert found_times(topic) == 1


def found_times(topic: Topic) -> int:
    """How often the oldest pending entry was delivered."""
    return int(topic.client.xpending_range(topic.keys.of("ready"), "g", "-", "+", 1)[0]["times_delivered"])


async def test_a_read_whose_reply_is_lost(topic: Topic, redis_url: str) -> None:
    """The entries of the lost reply are in the batch."""
    topic.send(*"abc")
    port = int(redis_url.rpartition(":")[2].partition("/")[0])
    async with Proxy(port) as proxy:
        reader = topic.reader(url=proxy.url)
        start = reader.initialOffset()
        proxy.lose_reply_to(b"XREADGROUP")
        end = await asyncio.to_thread(_plan, reader, start)
        assert proxy.lost == 1
        assert await asyncio.to_thread(_run, reader, start, end) == list("abc")
        reader.stop()


def test_a_reset_stream(topic: Topic) -> None:
    """Entries before the offset do not count as done: the query fails, and releases them."""
    topic.send("a")
    reader = topic.reader()
    offset = "9999999999999-0"
    # As if the server had lost an entry after the offset.
    take = reader._pending(topic.keys, "spark-x").take(offset, "9999999999999-1", 10, beyond=True)
    with pytest.raises(StreamReset, match=rf"was reset: new entry .* must come after the offset {offset}"):
        reader._run(take)
    assert topic.pending() == 0
    fresh = topic.reader()
    start = fresh.initialOffset()
    assert _run(fresh, start, _plan(fresh, start)) == ["a"]


def test_a_group_destroyed_under_way(topic: Topic) -> None:
    """The group is created again, and unacked messages come again (promise 14)."""
    topic.send("a")
    reader = topic.reader()
    start = reader.initialOffset()
    end = _plan(reader, start)
    topic.client.xgroup_destroy(topic.keys.of("ready"), "g")
    assert _run(reader, start, end) == []
    topic.send("b")
    after = _plan(reader, end)
    assert _run(reader, end, after) == ["b"]
    assert _run(reader, after, _plan(reader, after)) == ["a"]


@pytest.mark.parametrize("offset", [{}, {"logOffset": 0}, 7])
def test_offset_of_another_source(topic: Topic, offset: Any) -> None:
    """The error names the offset of a checkpoint of another source."""
    with pytest.raises(InvalidInput, match=r"offset must be an offset of this source.*; got "):
        topic.reader().commit(offset)


def test_fetching_fails_loudly(topic: Topic) -> None:
    """A key of a foreign type is an error of the query, not an empty batch."""
    topic.send("a")
    reader = topic.reader()
    start = reader.initialOffset()
    end = _plan(reader, start)
    topic.producer._connection.call(command("DEL", topic.keys.of("messages")))
    topic.client.set(topic.keys.of("messages"), "x")
    with pytest.raises(Exception, match="cannot fetch 1 messages of orders: WRONGTYPE"):
        _run(reader, start, end)


def test_a_settle_that_is_lost_half_way(topic: Topic) -> None:
    """An ack in parts whose second part is lost: entries that are no longer pending are acked, too."""
    topic.client.hset(topics_key(topic.keys.prefix), "orders", "{}")
    topic.producer.send_many("orders", [Message(body=b"x" * 1_000_000) for _ in range(12)])
    pending = PendingEntries(Topics(topic.keys.prefix), topic.keys, "g", "spark-1")
    with Connection(topic.url) as connection:
        last, *_ = connection.run(pending.take(FIRST, connection.run(pending.newest()), 10, beyond=True))
        flow = pending.settle(last)
        step: Any = next(flow)
        while not (isinstance(step, Call) and step.script and step.script.name == "ack"):
            step = flow.send(connection.call(step))
        topic.client.xack(topic.keys.of("ready"), "g", last)
        assert isinstance(connection.execute([step])[0], Unfinished)
        assert topic.pending() > 0
        step = flow.throw(OutcomeUnknown("the reply was lost"))
        with suppress(StopIteration):
            while True:
                step = flow.send(connection.call(step))
    assert topic.pending() == 0
