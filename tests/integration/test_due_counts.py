"""`Admin.due_counts` and `Admin.memory`: counted and sampled by the server, over all shards."""

import random

import pytest
import redis

from lisa_common.errors import InvalidInput, UnknownTopic
from lisa_common.model.keys import ShardKeys
from lisa_manager import Admin, ManagerSettings
from lisa_producer import Message, Producer, ProducerSettings

HOUR = 3_600_000


@pytest.fixture
def settings(redis_url: str, prefix: str) -> ManagerSettings:
    """Settings of a client on a prefix of its own."""
    return ManagerSettings(redis_url=redis_url, prefix=prefix)


def _send(settings: ManagerSettings, delays: list[float]) -> None:
    with Producer(settings=ProducerSettings(redis_url=settings.redis_url, prefix=settings.prefix)) as producer:
        messages = [Message(body="x" * 100, delay=delay, priority=n % 3 * 100) for n, delay in enumerate(delays)]
        producer.send_many("orders", messages)


def _dues(admin: Admin) -> list[int]:
    page = admin.messages("orders", "waiting", limit=1_000)
    dues = [message.at_ms for message in page.messages]
    while page.cursor:
        page = admin.messages("orders", "waiting", limit=1_000, cursor=page.cursor)
        dues += [message.at_ms for message in page.messages]
    return [due for due in dues if due is not None]


@pytest.mark.parametrize("shards", [1, 5, 200])
def test_every_waiting_message_is_in_one_part(settings: ManagerSettings, shards: int) -> None:
    """Of whatever priority and shard; a closer look at a part counts the same messages."""
    spread = random.Random(shards)
    with Admin(settings=settings) as admin:
        admin.create_topic("orders", shards=shards)
        _send(settings, [spread.uniform(60, 86_400) for _ in range(300)])
        dues = _dues(admin)
        assert len(dues) == 300
        whole = admin.due_counts("orders")
        assert (sum(whole.counts), whole.before, whole.after, whole.parked) == (300, 0, 0, 0)
        assert len(whole.counts) <= 48
        assert len(whole.counts) * shards <= 4_000 or len(whole.counts) <= 8
        for at, count in enumerate(whole.counts):
            low = whole.start_ms + at * whole.step_ms
            assert count == sum(low <= due < low + whole.step_ms for due in dues)
        most = max(range(len(whole.counts)), key=whole.counts.__getitem__)
        start = whole.start_ms + most * whole.step_ms
        closer = admin.due_counts("orders", start_ms=start, end_ms=start + whole.step_ms)
        assert closer.start_ms == start
        assert closer.step_ms < whole.step_ms
        assert closer.end_ms == start + whole.step_ms
        assert sum(closer.counts) == whole.counts[most]
        assert (closer.before, closer.after) == (sum(whole.counts[:most]), sum(whole.counts[most + 1 :]))


def test_what_has_no_place_in_time_is_told_apart(settings: ManagerSettings, client: redis.Redis, prefix: str) -> None:
    """No message at all, what is parked, and scores that nobody sends."""
    waiting = ShardKeys(prefix, "orders").of("waiting")
    with Admin(settings=settings) as admin:
        admin.create_topic("orders")
        assert admin.due_counts("orders").counts == ()
        client.zadd(waiting, {"parked": 2**44 + 10**12, "never": float("inf"), "before all": -1e300})
        alone = admin.due_counts("orders")
        assert (sum(alone.counts) + alone.before, alone.parked, alone.after) == (1, 1, 1)
        client.zadd(waiting, {"overdue": 10**12})
        client.zrem(waiting, "before all")
        assert admin.due_counts("orders").start_ms <= 10**12
        far = admin.due_counts("orders", start_ms=0, end_ms=2**43)
        assert (sum(far.counts), far.after) == (1, 1)
        client.delete(waiting)


@pytest.mark.parametrize(
    ("times", "told"),
    [
        ({"start_ms": 5, "end_ms": 5}, "end_ms must be later than start_ms"),
        ({"start_ms": -1}, "start_ms must be a whole number"),
        ({"end_ms": 2**44}, "end_ms must be a whole number"),
    ],
)
def test_wrong_times_are_refused(settings: ManagerSettings, times: dict[str, int], told: str) -> None:
    """And topics that do not exist."""
    with Admin(settings=settings) as admin:
        with pytest.raises(UnknownTopic):
            admin.due_counts("nowhere")
        admin.create_topic("orders")
        with pytest.raises(InvalidInput, match=told):
            admin.due_counts("orders", **times)


def test_memory_is_that_of_all_shards(settings: ManagerSettings) -> None:
    """Of a topic of many shards, some are measured; the others are as large."""
    with Admin(settings=settings) as admin:
        admin.create_topic("orders", shards=40)
        _send(settings, [3_600.0] * 4_000)
        of_many = admin.memory(["orders", "nowhere"])
        admin.create_topic("empty")
        assert of_many.keys() == {"orders"}
        assert 4_000 * 150 < of_many["orders"] < 4_000 * 600
        assert admin.memory(["empty"])["empty"] < 10_000
