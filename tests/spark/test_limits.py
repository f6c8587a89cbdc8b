"""Topics with limits, without Spark: a full one fails the task that finds it so; a guarded one ends a run early."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark.sql.streaming.datasource", reason="needs PySpark 4.2")

from lisa_common.client.connection import Connection
from lisa_common.errors import LisaError, QueueFull
from lisa_common.protocol import managing
from lisa_manager import Admin, ManagerSettings
from lisa_producer.spark.columns import Columns
from lisa_producer.spark.options import WriteOptions
from lisa_producer.spark.writer import Sink, Written
from spark.test_group_reader import Topic, _plan, _run
from spark.test_poison import Query
from support import Server


@pytest.fixture
def topic(redis_url: str, prefix: str) -> Iterator[Topic]:
    """A topic of the test's own."""
    topic = Topic(redis_url, prefix)
    yield topic
    topic.close()


@pytest.fixture
def admin(redis_url: str, prefix: str) -> Iterator[Admin]:
    """An operator."""
    with Admin(settings=ManagerSettings(redis_url=redis_url, prefix=prefix)) as opened:
        yield opened


def _write(topic: Topic, *ids: str, **options: Any) -> Written:
    given = {"url": topic.url, "prefix": topic.keys.prefix, "topic": "orders", "batchmessages": "2"} | options
    sink = Sink(WriteOptions.of(given), Columns(("id", "body"), "orders"), "run")
    return sink.write(iter([pa.RecordBatch.from_pydict({"id": ids, "body": ["x"] * len(ids)})]))


@pytest.mark.parametrize("operation", ["send", "upsert"])
def test_a_full_topic(topic: Topic, admin: Admin, tmp_path: Any, operation: str) -> None:
    """The task fails at once, with the limit; no row is bad for that. Once there is room, a repeat adds the rest."""
    admin.set_policy("orders", max_messages=3)
    ids = ("a", "b", "c", "d", "e")
    for options in ({}, {"badrows": f"{tmp_path}/bad"}):
        with pytest.raises(QueueFull, match="orders holds 2 messages of at most 3; 2 more were refused"):
            _write(topic, *ids, operation=operation, **options)
    assert not (tmp_path / "bad").exists()
    assert admin.sizes("orders")[0].stored == 2
    admin.set_policy("orders", max_messages=5)
    written = _write(topic, *ids, operation=operation)
    assert (written.rows, written.bad) == (5, 0)
    assert admin.sizes("orders")[0].stored == 5


def test_a_topic_of_bad_rows_that_is_full(topic: Topic, admin: Admin) -> None:
    """A bad row that nobody takes fails its task; the error has both reasons."""
    admin.set_policy("bad", max_messages=1)
    topic.producer.send("bad", b"x")
    with pytest.raises(Exception, match=r"id 'bad id\\n'.*; and bad refuses it: bad holds 1 messages of at most 1"):
        _write(topic, "bad id\n", badrows="bad")


def test_a_paused_topic(topic: Topic, admin: Admin) -> None:
    """A run of what is available ends, as nothing is ready; after the pause the next one has it all."""
    admin.set_policy("orders", paused=True)
    topic.send(*"abc")
    reader = topic.reader()
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    assert _plan(reader, start) == start
    admin.set_policy("orders", paused=False)
    topic.producer._connection.call(managing.promote(topic.keys, limit=10))
    reader = topic.reader()
    reader.prepareForTriggerAvailableNow()
    assert sorted(_run(reader, start, _plan(reader, start))) == ["a", "b", "c"]


def test_few_in_flight(topic: Topic, admin: Admin) -> None:
    """A micro-batch has as many messages as may be in flight; its ack lets the next ones pass."""
    admin.set_policy("orders", max_in_flight=2)
    query = Query(topic)
    topic.send(*"abcde")
    for done in (2, 4, 5):
        assert not query.run()
        assert query.handled.total() == done
    assert sorted(query.handled.elements()) == list("abcde")
    assert topic.pending() == 0


def test_a_full_server_drains(own_server: Callable[..., Server]) -> None:
    """Sends are refused there; what is ready is read, handled and acked."""
    server = own_server(maxmemory_policy="noeviction")
    topic = Topic(server.url, "lisa")
    query = Query(topic)
    assert not query.run()
    topic.send(*"abc")
    topic.client.config_set("maxmemory", 1)
    assert not query.run()
    assert sorted(query.handled) == list("abc")
    assert topic.client.hlen(topic.keys.of("messages")) == 0
    topic.close()


def test_poison_where_few_are_in_flight(topic: Topic, admin: Admin) -> None:
    """What is given back passes the door again, without an attempt; only the poison dies."""
    admin.set_policy("orders", max_in_flight=4, max_retries=1, backoff_base_ms=1)
    ids = [f"m{number:02}" for number in range(12)]
    topic.send(*ids)
    query = Query(topic, "m05")
    runs = 0
    while query.run() or topic.client.zcard(topic.keys.of("retry")) or topic.client.zcard(topic.keys.of("waiting")):
        runs += 1
        assert runs < 200
    assert sorted(query.handled.elements()) == [id for id in ids if id != "m05"]
    assert topic.client.zrange(topic.keys.of("garbage"), 0, -1) == [b"g/m05"]


@pytest.mark.parametrize(
    ("operation", "bad"), [("send", None), ("cancel", None), ("cancel", "")], ids=["rate", "changes", "bad row"]
)
def test_a_task_closes_its_connections(
    own_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch, operation: str, bad: str | None
) -> None:
    """Also where a row fails it. The garbage collector would close them later."""
    opened: list[Connection] = []
    monkeypatch.setattr(Connection, "of", _noting(opened))
    server = own_server()
    given = {"url": server.url, "topic": "orders", "operation": operation, "maxrowspersecond": "1000"}
    columns = ("id", "body") if operation == "send" else ("id",)
    batch = pa.RecordBatch.from_pydict(dict.fromkeys(columns, ["x"] if bad is None else ["x", bad]))
    sink = Sink(WriteOptions.of(given), Columns(columns, "orders"), "run")
    with nullcontext() if bad is None else pytest.raises(LisaError, match=r"^row 1"):
        sink.write(iter([batch]))
    with server.client() as client:
        names = [each["name"] for each in client.client_list()]
    assert (opened != [], [name for name in names if name]) == (True, [])


def _noting(opened: list[Connection]) -> Any:
    of = Connection.of

    def note(*args: Any, **options: Any) -> Connection:
        opened.append(of(*args, **options))
        return opened[-1]

    return note
