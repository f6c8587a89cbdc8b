"""A stream that stops and starts again, soon or late, and a server that fails over, without Spark."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark.sql.streaming.datasource", reason="needs PySpark 4.2")

from lisa_common.errors import LisaError
from lisa_common.model.policy import Policy
from lisa_common.protocol import consuming, managing
from lisa_producer.spark.receipts import read_receipt
from lisa_producer.spark.stream import GroupReader, Offset
from spark.test_group_reader import Topic, _plan, _run
from support.proxy import Proxy


@pytest.fixture
def topic(redis_url: str, prefix: str) -> Iterator[Topic]:
    """A topic of the test's own."""
    topic = Topic(redis_url, prefix)
    yield topic
    topic.close()


def _nack(topic: Topic, receipt: str, **options: Any) -> None:
    """Nacks a row, as `foreachBatch` does."""
    _, group, _, entry = read_receipt(receipt)
    nacks = [consuming.Nack(entry, "no", **options)]
    topic.producer._connection.call(consuming.nack(topic.keys, group, nacks, Policy()))


def _receipts(reader: GroupReader, start: Offset, end: Offset) -> dict[str, str]:
    batches = [batch for each in reader.partitions(start, end) for batch in reader.read(each)]
    return {row["id"]: row["receipt"] for row in pa.Table.from_batches(batches).to_pylist()}


def _promote(topic: Topic) -> None:
    topic.producer._connection.call(managing.promote(topic.keys, limit=10))


def test_a_batch_that_was_finished_before_a_late_restart(topic: Topic) -> None:
    """Its messages are acked, though their leases have run out; what it has nacked is retried, or replayed."""
    topic.send(*"abcd")
    stopped = topic.reader()
    start = stopped.initialOffset()
    end = _plan(stopped, start)
    receipts = _receipts(stopped, start, end)
    _nack(topic, receipts["c"])
    _nack(topic, receipts["d"], rejected=True)
    stopped.stop()
    assert topic.reclaim_all() == 2
    assert topic.producer._connection.call(managing.replay(topic.keys, ["g/d"])) == ["replayed"]
    again = topic.reader()
    next_end = _plan(again, end)
    assert _run(again, end, next_end) == ["d"]
    assert sorted(topic.client.hkeys(topic.keys.of("messages"))) == [b"c", b"d"]


def test_a_retry_that_was_finished_before_a_late_restart(topic: Topic) -> None:
    """It is acked: that an earlier delivery was nacked says nothing about this one."""
    topic.send("a")
    reader = topic.reader()
    start = reader.initialOffset()
    failed = _plan(reader, start)
    _nack(topic, _receipts(reader, start, failed)["a"], delay_ms=0)
    _promote(topic)
    end = _plan(reader, failed)
    assert _run(reader, failed, end) == ["a"]
    reader.stop()
    assert topic.reclaim_all() == 1
    again = topic.reader()
    assert _plan(again, end) == end
    assert topic.client.hlen(topic.keys.of("messages")) == 0


def test_a_retry_of_another_group_in_the_batch_before_a_restart(topic: Topic) -> None:
    """It is skipped. The same message is to be retried in the query's group, too, and stays so."""
    with topic.consumer("other") as other:
        other.read()
        stopped = topic.reader()
        start = _plan(stopped, stopped.initialOffset())
        topic.send("a")
        failed = _plan(stopped, start)
        _nack(topic, _receipts(stopped, start, failed)["a"], delay_ms=3_600_000)
        other.nack(*other.read(wait=10), delay=0)
    _promote(topic)
    end = _plan(stopped, failed)
    assert _run(stopped, failed, end) == []
    stopped.stop()
    again = topic.reader()
    assert _plan(again, end) == end
    assert topic.client.zrange(topic.keys.of("retry"), 0, -1) == [b"g/a"]


def test_an_expired_message_in_the_batch_before_a_restart(topic: Topic) -> None:
    """It was no row, and stays a dead letter."""
    topic.send("a")
    topic.send("expired", ttl=0.001)
    stopped = topic.reader()
    start = stopped.initialOffset()
    end = _plan(stopped, start)
    assert _run(stopped, start, end) == ["a"]
    stopped.stop()
    again = topic.reader()
    assert _plan(again, end) == end
    assert topic.client.zrange(topic.keys.of("garbage"), 0, -1) == [b"g/expired"]


async def test_a_query_that_dies_while_it_notes_a_batch(topic: Topic, redis_url: str) -> None:
    """The next run has all of the batch."""
    topic.send(*"abcd")
    port = int(redis_url.rpartition(":")[2].partition("/")[0])
    async with Proxy(port) as proxy:
        reader = topic.reader(url=proxy.url, timeout=0.3, patience=0.1)
        start = await asyncio.to_thread(reader.initialOffset)
        ended = await asyncio.to_thread(_plan, reader, start)
        assert await asyncio.to_thread(_run, reader, start, ended)
        topic.send(*"efgh")
        end = await asyncio.to_thread(_plan, reader, ended)

        async def swallow_the_note(data: bytes) -> bytes | None:
            return None if b"/noted" in data else data

        proxy.change_request = swallow_the_note
        with pytest.raises(LisaError):
            await asyncio.to_thread(reader.partitions, ended, end)
        await asyncio.to_thread(reader.stop)
    assert sorted(await asyncio.to_thread(_run, topic.reader(), ended, end)) == list("efgh")


def test_a_batch_that_was_not_finished_before_a_late_restart(topic: Topic) -> None:
    """All of its messages come again."""
    topic.send(*"abc")
    stopped = topic.reader()
    start = stopped.initialOffset()
    stopped.partitions(start, _plan(stopped, start))
    stopped.stop()
    assert topic.reclaim_all() == 3
    again = topic.reader()
    assert _run(again, start, _plan(again, start)) == list("abc")


def test_leases_that_run_out_before_tasks_read(topic: Topic) -> None:
    """As where the driver cannot reach the server. The batch ends without rows, and none is acked by the next run."""
    topic.send(*"abc")
    stopped = topic.reader()
    start = stopped.initialOffset()
    end = _plan(stopped, start)
    ranges = stopped.partitions(start, end)
    assert stopped._keeper is not None
    stopped._keeper.stop()
    assert topic.reclaim_all() == 3
    assert [row for each in ranges for row in stopped.read(each)] == []
    stopped.stop()
    again = topic.reader()
    assert _run(again, end, _plan(again, end)) == list("abc")


@pytest.mark.parametrize("late", [False, True], ids=["soon", "late"])
def test_a_batch_that_was_repeated_and_not_read(topic: Topic, *, late: bool) -> None:
    """Rows that only the failed first try has read are not acked when Spark goes on after the second."""
    topic.send(*"abc")
    failed = topic.reader()
    start = failed.initialOffset()
    end = _plan(failed, start)
    assert _run(failed, start, end) == list("abc")
    failed.stop()
    if late:
        assert topic.reclaim_all() == 3
    stopped = topic.reader()
    assert len(stopped.partitions(start, end)) == (0 if late else 1)
    stopped.stop()
    if not late:
        assert topic.reclaim_all() == 3
    again = topic.reader()
    assert _run(again, end, _plan(again, end)) == list("abc")


def test_a_message_behind_one_with_which_the_query_failed(topic: Topic) -> None:
    """It is tried, though the query has failed twice, each time with a batch of one message."""
    topic.client.hset(f"{topic.keys.prefix}:topics", "orders", Policy(max_retries=0).dump())
    topic.send("poison")
    failed = topic.reader()
    start = failed.initialOffset()
    end = _plan(failed, start)
    assert _run(failed, start, end) == ["poison"]
    failed.stop()
    assert topic.reclaim_all() == 1
    failed = topic.reader()
    assert _run(failed, start, end) == []
    start, end = end, _plan(failed, end)
    assert _run(failed, start, end) == ["poison"]
    failed.stop()
    assert topic.reclaim_all() == 1
    with topic.consumer() as other:
        other.ack(*other.read())
    topic.send("good")
    reader = topic.reader()
    assert _run(reader, start, end) == []
    assert _run(reader, end, _plan(reader, end)) == ["good"]
    assert topic.client.exists(topic.keys.of("garbage")) == 0


def test_a_failover_that_loses_an_ack(topic: Topic) -> None:
    """It is acked again, though nothing becomes ready: where few may be in flight, nothing else would."""
    topic.send("a")
    reader = topic.reader()
    start = reader.initialOffset()
    end = _plan(reader, start)
    assert _run(reader, start, end) == ["a"]
    saved = {key: topic.client.dump(key) for key in topic.client.keys(f"{topic.keys.prefix}:*")}
    assert _plan(reader, end) == end
    assert topic.pending() == 0
    for key, value in saved.items():
        topic.client.restore(key, 0, value, replace=True)
    assert topic.pending() == 1
    assert _plan(reader, end) == end
    assert topic.pending() == 0
