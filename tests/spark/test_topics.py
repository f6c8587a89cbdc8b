"""Several topics in one stream, by name and by pattern, and where new groups begin, without Spark."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark.sql.streaming.datasource", reason="needs PySpark 4.2")

from pyspark.sql.streaming.datasource import ReadAllAvailable

from lisa_common.errors import InvalidInput
from lisa_common.model.keys import ShardKeys, topics_key
from lisa_common.model.policy import Policy
from lisa_common.protocol import managing
from lisa_common.protocol.call import Call
from lisa_consumer import Consumer
from lisa_consumer.settings import ConsumerSettings
from lisa_manager import Admin, ManagerSettings
from lisa_producer import Message, Producer, ProducerSettings
from lisa_producer.spark import stream
from lisa_producer.spark.starting import start_groups
from lisa_producer.spark.stream import GroupReader, Offset
from spark.test_group_reader import Topic, _plan, _run
from support import count_calls, wait_until


@pytest.fixture
def topic(redis_url: str, prefix: str) -> Iterator[Topic]:
    """The topic `orders`, beside others of its prefix."""
    topic = Topic(redis_url, prefix)
    yield topic
    topic.close()


@pytest.fixture
def admin(topic: Topic) -> Iterator[Admin]:
    """An operator."""
    with Admin(settings=ManagerSettings(redis_url=topic.url, prefix=topic.keys.prefix)) as opened:
        yield opened


def _send(topic: Topic, name: str, *ids: str) -> None:
    topic.producer.send_many(name, [Message(body="x", id=id) for id in ids])


def _rows(reader: GroupReader, start: Offset, end: Offset) -> list[tuple[str, str]]:
    batches = [batch for each in reader.partitions(start, end) for batch in reader.read(each)]
    return [(row["topic"], row["id"]) for row in pa.Table.from_batches(batches).to_pylist()] if batches else []


def _stored(topic: Topic, *names: str) -> int:
    return sum(topic.client.hlen(ShardKeys(topic.keys.prefix, name).of("messages")) for name in names)


def _looks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "_LOOK_S", 0.0)


@pytest.mark.parametrize("names", ["a,b.1, b.2", "a,b.*", "*,a"])
def test_topics_make_one_stream(topic: Topic, names: str) -> None:
    """Each row names its topic; what is done is acked in all of them."""
    for name in ("a", "b.1", "b.2"):
        _send(topic, name, "m1", "m2")
    reader = topic.reader(topic=names)
    start = reader.initialOffset()
    end = _plan(reader, start)
    assert sorted(_rows(reader, start, end)) == [(n, f"m{i}") for n in ("a", "b.1", "b.2") for i in (1, 2)]
    assert reader.reportLatestOffset() == {"messages": 6, "topics": {"a": 2, "b.1": 2, "b.2": 2}}
    reader.commit(end)
    assert _stored(topic, "a", "b.1", "b.2") == 0
    assert reader.reportLatestOffset() == {"messages": 0, "topics": {"a": 0, "b.1": 0, "b.2": 0}}
    assert _plan(reader, end) == end


def test_a_user_of_several_topics_needs_no_other_keys(topic: Topic) -> None:
    """A query keeps its notes beside its first topic."""
    user = prefix = topic.keys.prefix
    keys = [f"~{prefix}:{name}" for name in ("{a}:*", "{a/*}:*", "{b}:*", "{b/*}:*", "[^{]*")]
    topic.client.execute_command("ACL", "SETUSER", user, "on", ">secret", "+@all", "&*", *keys)
    for name in ("a", "b"):
        _send(topic, name, "m1")
    reader = topic.reader(topic="a,b", url=topic.url.replace("://", f"://{user}:secret@"))
    start = reader.initialOffset()
    end = _plan(reader, start)
    assert sorted(_rows(reader, start, end)) == [("a", "m1"), ("b", "m1")]
    reader.commit(end)
    assert _stored(topic, "a", "b") == 0
    topic.client.execute_command("ACL", "DELUSER", user)


def test_limits_are_shared(topic: Topic) -> None:
    """A micro-batch has at most maxRows messages of all topics together, and no topic starves."""
    for name in ("a", "b", "c"):
        _send(topic, name, *(f"m{number}" for number in range(10)))
    reader = topic.reader(topic="a,b,c", maxRows=2)
    at, seen = reader.initialOffset(), list[tuple[str, str]]()
    while (end := _plan(reader, at)) != at:
        batch = _rows(reader, at, end)
        assert len(batch) <= 2
        seen += batch
        at = end
    assert len(seen) == len(set(seen)) == 30
    assert {name for name, _ in seen[:6]} == {"a", "b", "c"}


def test_topics_that_come_and_go(topic: Topic, admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pattern without topics waits for them; a dropped topic leaves the offset, and comes back with what is new."""
    _looks_at_once(monkeypatch)
    reader = topic.reader(topic="b.*")
    at = reader.initialOffset()
    assert _plan(reader, at) == at
    for name, id in (("b.1", "m1"), ("b.2", "m2"), ("b.1", "m3")):
        _send(topic, name, id)
        end = _plan(reader, at)
        assert _rows(reader, at, end) == [(name, id)]
        at = end
    reader.commit(at)
    admin.drop_topic("b.1")
    at = _plan(reader, at)
    assert list(at["topics"]) == ["b.2"]
    with Producer(settings=ProducerSettings.load(redis_url=topic.url, prefix=topic.keys.prefix)) as other:
        other.send("b.1", "x", id="again")
    end = _plan(reader, at)
    assert _rows(reader, at, end) == [("b.1", "again")]


def test_a_run_that_ends_has_no_later_topics(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    """With availableNow, a topic that is found during the run is for the next one."""
    _looks_at_once(monkeypatch)
    _send(topic, "b.1", "m1")
    reader = topic.reader(topic="b.*")
    reader.prepareForTriggerAvailableNow()
    _send(topic, "b.2", "m2")
    start = reader.initialOffset()
    end = _plan(reader, start, ReadAllAvailable())
    assert _rows(reader, start, end) == [("b.1", "m1")]
    assert _plan(reader, end, ReadAllAvailable()) == end
    again = topic.reader(topic="b.*")
    assert _rows(again, end, _plan(again, end)) == [("b.2", "m2")]


def test_a_batch_of_several_topics_done_again(topic: Topic) -> None:
    """After a restart it has the same rows."""
    for name in ("a", "b"):
        _send(topic, name, "m1", "m2")
    first = topic.reader(topic="a,b")
    start = first.initialOffset()
    end = _plan(first, start)
    rows = _rows(first, start, end)
    first.stop()
    again = topic.reader(topic="a,b")
    assert _rows(again, again.initialOffset(), json.loads(json.dumps(end))) == rows


def test_a_batch_of_several_topics_that_was_finished(topic: Topic) -> None:
    """It is acked after a late restart, though its leases have run out."""
    for name in ("a", "b"):
        topic.client.hset(topics_key(topic.keys.prefix), name, Policy(visibility_ms=100).dump())
        _send(topic, name, "m1")
    stopped = topic.reader(topic="a,b")
    start = stopped.initialOffset()
    end = _plan(stopped, start)
    assert len(_rows(stopped, start, end)) == 2
    stopped.stop()
    for name in ("a", "b"):
        keys = ShardKeys(topic.keys.prefix, name)
        call = managing.reclaim(keys, "g", Policy(visibility_ms=100), cursor="0-0", limit=10)
        wait_until(lambda call=call: topic.producer._connection.call(call).count, what="the lease to run out")
    again = topic.reader(topic="a,b")
    assert _rows(again, end, _plan(again, end)) == []
    assert _stored(topic, "a", "b") == 0


def test_a_poisonous_message_among_topics(topic: Topic) -> None:
    """Only it becomes garbage; the messages of the other topic are handled."""
    for name in ("a", "b"):
        topic.client.hset(topics_key(topic.keys.prefix), name, Policy(max_retries=0).dump())
        _send(topic, name, *(f"{name}{number}" for number in range(20)))
    handled: list[str] = []
    at: Offset | None = None
    planned: tuple[Offset, Offset] | None = None
    for _ in range(60):
        reader = topic.reader(topic="a,b")
        at = at or reader.initialOffset()
        planned = planned or (at, _plan(reader, at))
        if planned[0] == planned[1]:
            break
        ids = _run(reader, *planned)
        if "b7" not in ids:
            handled += ids
            at, planned = planned[1], None
        reader.stop()
    assert sorted(handled) == sorted(
        f"{name}{number}" for name in ("a", "b") for number in range(20) if (name, number) != ("b", 7)
    )
    assert topic.client.zrange(ShardKeys(topic.keys.prefix, "b").of("garbage"), 0, -1) == [b"g/b7"]


def test_leases_of_topics_found_later(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are renewed in time, however long those of the others are."""
    _looks_at_once(monkeypatch)
    _send(topic, "b.1", "m1")
    reader = topic.reader(topic="b.*")
    start = reader.initialOffset()
    at = _plan(reader, start)
    topic.client.hset(topics_key(topic.keys.prefix), "b.2", Policy(visibility_ms=150).dump())
    _send(topic, "b.2", "m2")
    end = _plan(reader, at)
    assert end["topics"]["b.2"]
    topic.client.config_resetstat()
    wait_until(lambda: count_calls(topic.client, "xclaim") >= 4, what="four renewals")


def test_an_offset_of_an_earlier_version(topic: Topic) -> None:
    """It did not name the topic."""
    topic.send("a", "b")
    first = topic.reader(maxRows=1)
    start = first.initialOffset()
    end = _plan(first, start)
    old = {"consumer": end["consumer"], "entries": end["topics"]["orders"]}
    again = topic.reader()
    assert _run(again, {"consumer": end["consumer"], "entries": {}}, old) == ["a"]
    assert _run(again, old, _plan(again, old)) == ["b"]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"topic": "a,b/c"}, "topic must be 1 to 128 letters.*; got 'b/c'"),
        ({"topic": "a,"}, "topic must be 1 to 128 letters.*; got ''"),
        ({"startingOffsets": "first"}, "option startingOffsets must be earliest, latest, or a time .*; got 'first'"),
        ({"startingOffsets": "2026-01-01"}, "option startingOffsets must be .* with a zone.*; got '2026-01-01'"),
        ({"startingOffsets": "3"}, "option startingOffsets must be .*; got '3'"),
    ],
)
def test_options(topic: Topic, options: dict[str, str], error: str) -> None:
    """The error names the option and what it takes."""
    with pytest.raises(InvalidInput, match=error):
        topic.reader(**options)


def _begin(reader: GroupReader) -> None:
    _plan(reader, reader.initialOffset())


def _first_ids(server: Topic, /, **options: Any) -> list[str]:
    reader = server.reader(**options)
    start = reader.initialOffset()
    found = sorted(_run(reader, start, end := _plan(reader, start)))
    reader.commit(end)
    reader.stop()
    return found


def _server_time(topic: Topic) -> str:
    seconds, microseconds = topic.client.time()
    return datetime.fromtimestamp(seconds + microseconds / 1e6, UTC).isoformat()


def _wait_for_the_next_ms(topic: Topic) -> None:
    last = topic.client.time()
    wait_until(lambda: topic.client.time() > (last[0], last[1] + 2_000), what="the next milliseconds")


def test_a_time_begins_with_its_millisecond(topic: Topic) -> None:
    """Entries know no more of the time: what became ready later in the same millisecond does not stay behind."""
    topic.send("a")
    [(entry, _)] = topic.client.xrange(topic.keys.of("ready"))
    start = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=int(entry.split(b"-")[0]), microseconds=999)
    assert _first_ids(topic, topic="orders", startingOffsets=start.isoformat()) == ["a"]


@pytest.mark.parametrize("shards", [1, 3])
def test_a_new_group_begins_where_the_option_says(topic: Topic, admin: Admin, shards: int) -> None:
    """With all that is ready, with what becomes ready from now on, or from a time on; nothing stays behind."""
    for name in ("earliest", "latest", "time"):
        admin.create_topic(name, shards=shards)
        _send(topic, name, "a", "b", "c")
    _wait_for_the_next_ms(topic)
    time = _server_time(topic)
    for name in ("earliest", "latest", "time"):
        _send(topic, name, "d")
    assert _first_ids(topic, topic="earliest", startingOffsets="earliest") == ["a", "b", "c", "d"]
    assert _first_ids(topic, topic="latest", startingOffsets="latest") == []
    assert _first_ids(topic, topic="time", startingOffsets=time) == ["d"]
    for name in ("latest", "time"):
        assert [size.stored for size in admin.sizes(name)] == [0]
        _send(topic, name, "e")
        # The group exists now, and keeps its position.
        assert _first_ids(topic, topic=name, startingOffsets="latest") == ["e"]


def test_a_later_group(topic: Topic) -> None:
    """It cannot begin with what belongs to other groups, and says so before anything is created."""
    settings = ConsumerSettings.load(redis_url=topic.url, prefix=topic.keys.prefix)
    topic.send("a")
    with Consumer("orders", group="first", settings=settings) as consumer:
        (held,) = consumer.read(limit=1)
        for start in ("earliest", "2026-01-01T00:00:00Z"):
            error = r"must be latest for the new group g of orders, .* belong to first; got '(earliest|2026-01-01T00)"
            with pytest.raises(InvalidInput, match=error):
                _begin(topic.reader(topic="new,orders", startingOffsets=start))
        assert [group["name"] for group in topic.client.xinfo_groups(topic.keys.of("ready"))] == [b"first"]
        assert topic.client.exists(ShardKeys(topic.keys.prefix, "new").of("ready")) == 0
        assert _first_ids(topic, startingOffsets="latest") == []
        assert consumer.ack(held) == ["acked"]
    assert _stored(topic, "orders") == 0


def test_a_time_to_come(topic: Topic) -> None:
    """A group cannot begin then."""
    with pytest.raises(InvalidInput, match=r"startingOffsets must be a time before that of the server, .*; got '2030-"):
        _begin(topic.reader(startingOffsets="2030-01-01T00:00:00Z"))


def _die_at(topic: Topic, name: str, *, before: bool = False) -> None:
    """A driver dies while its group begins: once it has made a call, or before that."""
    reader, execute = topic.reader(startingOffsets="latest"), topic.producer._connection.execute
    flow = start_groups(reader._topics, reader._layouts(), "g", "latest")
    step: Any = next(flow)
    is_last = False
    while not is_last:
        is_last = isinstance(step, Call) and name in (step.args[0], step.script and step.script.name)
        if is_last and before:
            break
        results = execute([step] if isinstance(step, Call) else step)
        step = flow.send(results[0] if isinstance(step, Call) else results)
    _wait_for_the_next_ms(topic)


def test_a_driver_that_dies_while_its_group_begins(topic: Topic) -> None:
    """The next one goes on: what was ready at the first start is not read."""
    topic.send(*(f"m{number}" for number in range(30)))
    # With the first page read, and not acked.
    _die_at(topic, "ack", before=True)
    assert topic.pending() == 30
    topic.send("new")
    assert _first_ids(topic, startingOffsets="latest") == ["new"]
    assert topic.pending() == 0
    assert _stored(topic, "orders") == 0


def test_a_driver_that_dies_again_while_its_group_begins(topic: Topic) -> None:
    """What it had read by then of later messages comes to the query."""
    topic.send("old")
    _die_at(topic, "ack")
    topic.send("a")
    _die_at(topic, "XREADGROUP")
    assert topic.pending() == 1
    topic.send("b")
    assert _first_ids(topic, startingOffsets="latest") == ["a", "b"]


def test_another_option_after_a_driver_that_died(topic: Topic) -> None:
    """What the new option does not leave out is read."""
    topic.send(*"abc")
    _die_at(topic, "ack", before=True)
    assert _first_ids(topic, startingOffsets="earliest") == ["a", "b", "c"]


def test_topics_that_come_before_the_first_batch_is_done(topic: Topic) -> None:
    """A query that failed with it starts again with the same checkpoint: nothing in them is left out."""
    _send(topic, "b.1", "m1")
    failed = topic.reader(topic="b.*", startingOffsets="latest")
    start = failed.initialOffset()
    end = _plan(failed, start)
    assert _rows(failed, start, end) == []
    failed.stop()
    _send(topic, "b.2", "m2")
    again = topic.reader(topic="b.*", startingOffsets="latest")
    assert _rows(again, again.initialOffset(), end) == []
    assert _rows(again, end, _plan(again, end)) == [("b.2", "m2")]
