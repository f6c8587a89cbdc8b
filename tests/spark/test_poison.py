"""Messages with which a query fails, without Spark: only they become garbage."""

from collections import Counter
from collections.abc import Iterator

import pytest

pytest.importorskip("pyspark.sql.streaming.datasource", reason="needs PySpark 4.2")

from lisa_common.model.policy import Policy
from lisa_common.protocol import managing
from lisa_producer.spark.stream import GroupReader, Offset
from spark.test_group_reader import Topic, _plan, _run


@pytest.fixture
def topic(redis_url: str, prefix: str) -> Iterator[Topic]:
    """A topic whose messages have three attempts."""
    topic = Topic(redis_url, prefix)
    topic.client.hset(f"{prefix}:topics", "orders", Policy(max_retries=2, backoff_base_ms=1).dump())
    yield topic
    topic.close()


class Query:
    """A query with a checkpoint, as Spark runs it. It fails with each batch that has a poisonous message."""

    def __init__(self, topic: Topic, *poison: str) -> None:
        self.topic = topic
        self.poison = set(poison)
        self.handled: Counter[str] = Counter()
        self.failures: list[int] = []
        """The sizes of failed batches."""
        self._planned: tuple[Offset, Offset] | None = None
        self._at: Offset | None = None

    def run(self) -> bool:
        """Runs the query until it fails, or until nothing is left. Returns whether it failed."""
        reader = self.topic.reader()
        self._at = self._at or reader.initialOffset()
        try:
            while True:
                self.topic.producer._connection.call(managing.promote(self.topic.keys, limit=1000))
                planned = self._planned or (self._at, _plan(reader, self._at))
                if planned[0] == planned[1]:
                    return False
                self._planned = planned
                if not self._handle(reader, planned):
                    return True
                self._planned, self._at = None, planned[1]
        finally:
            reader.stop()

    def _handle(self, reader: GroupReader, planned: tuple[Offset, Offset]) -> bool:
        ids = _run(reader, *planned)
        if self.poison.intersection(ids):
            self.failures.append(len(ids))
            return False
        self.handled.update(ids)
        return True


@pytest.mark.parametrize("poison", ["m000", "m250", "m499"])
def test_only_the_poison_dies(topic: Topic, poison: str) -> None:
    """One poisonous message of 500: 499 are handled once, in a few restarts, and it is the only dead letter."""
    ids = [f"m{number:03}" for number in range(500)]
    topic.send(*ids)
    query = Query(topic, poison)
    restarts = 0
    while query.run() or topic.client.zcard(topic.keys.of("retry")):
        restarts += 1
        assert restarts < 1000
    assert query.handled == Counter(set(ids) - {poison})
    garbage = topic.client.zrange(topic.keys.of("garbage"), 0, -1)
    assert garbage == [f"g/{poison}".encode()]
    assert query.failures[:2] == [500, 500]
    assert len(query.failures) < 15
    assert topic.pending() == 0
    assert topic.client.hlen(topic.keys.of("messages")) == 1


def test_a_query_that_fails_for_another_reason(topic: Topic) -> None:
    """As when its target is away for a while: its batch is repeated, row for row, and no attempt is spent."""
    topic.send(*"abc")
    query = Query(topic, *"abc")
    assert query.run()
    query.poison.clear()
    assert not query.run()
    assert (query.failures, query.handled) == ([3], Counter("abc"))
    assert topic.client.exists(topic.keys.of("failures"), topic.keys.of("garbage")) == 0


def test_a_query_that_is_stopped_again_and_again(topic: Topic) -> None:
    """Each time after its batch, before the next: those are no failures, and no batch is shortened."""
    start: Offset | None = None
    for round_ in range(4):
        topic.send(*(f"m{round_}-{number:02}" for number in range(20)))
        reader = topic.reader()
        start = start or reader.initialOffset()
        end = _plan(reader, start)
        assert len(_run(reader, start, end)) == 20
        start = end
        reader.stop()


def test_a_run_of_what_is_available_includes_what_is_given_back(topic: Topic) -> None:
    """A batch that failed twice is shortened; the same run reads the rest, and leaves what was sent later."""
    ids = [f"m{number:02}" for number in range(20)]
    topic.send(*ids)
    start = topic.reader().initialOffset()
    end = _plan(topic.reader(), start)
    for _ in range(2):
        assert len(_run(topic.reader(), start, end)) == 20
    reader, handled = topic.reader(), list[str]()
    reader.prepareForTriggerAvailableNow()
    while start != end:
        handled += _run(reader, start, end)
        start, end = end, _plan(reader, end)
        topic.send(f"later{len(handled)}")
    assert Counter(handled) >= Counter(ids)
    assert len(handled) < len(ids) + 2


def test_leases_that_run_out_after_a_failure(topic: Topic) -> None:
    """The messages of a failed query come again without an attempt spent, however often."""
    topic.send(*"abcdefghij")
    for _ in range(4):
        query = Query(topic, *"abcdefghij")
        assert query.run()
        assert topic.reclaim_all() == 10
    calm = Query(topic)
    assert not calm.run()
    assert calm.handled == Counter("abcdefghij")
    assert topic.client.exists(topic.keys.of("garbage")) == 0
