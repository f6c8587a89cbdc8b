"""The history of topics: what a manager samples, and what it saves itself."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import pytest
import redis

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.model.keys import ShardKeys, events_channel, history_key, topics_key
from lisa_common.model.policy import Policy
from lisa_common.model.sharding import Layout
from lisa_common.protocol.call import command
from lisa_common.protocol.managing import Promoted
from lisa_consumer import AsyncConsumer, ConsumerSettings
from lisa_manager import AsyncAdmin
from lisa_manager.admin.events import TopicEvents, read_events
from lisa_manager.admin.topics.history import Sample
from lisa_manager.jobs import history_writer as module
from lisa_manager.jobs.history_writer import HistoryWriter
from lisa_manager.jobs.reporter import Reporter
from lisa_manager.settings import ManagerSettings
from lisa_producer import AsyncProducer, ProducerSettings
from support import Server, count_calls

INTERVAL_MS = 60_000

TOPICS = [f"topic-{number:02}" for number in range(24)]


class Turns:
    """A history writer, and its clock: real time would skip intervals on a busy machine."""

    def __init__(self, server: Server, prefix: str, connection: AsyncConnection, admin: AsyncAdmin) -> None:
        self.client = server.client()
        self.prefix = prefix
        self._admin = admin
        layouts = {topic: Layout(prefix, topic, Policy()) for topic in TOPICS}
        settings = ManagerSettings(redis_url=server.url, prefix=prefix, history_s=INTERVAL_MS / 1_000)
        self._history_writer = HistoryWriter(connection, settings, lambda: layouts)
        self.reporter = Reporter(connection, prefix, self._history_writer)
        self.now_ms = round(time.time() * 1_000)
        self._connection = connection

    async def turn(self) -> None:
        """A turn in the next interval."""
        self.now_ms += INTERVAL_MS
        await self._history_writer.turn()

    async def events(self) -> dict[str, TopicEvents]:
        """What the reporter publishes in its next turn."""
        async with aclosing(self._connection.listen(events_channel(self.prefix))) as messages:
            async for message in messages:
                if message is None:
                    await self.reporter.turn()
                elif events := read_events(message):
                    return events
        raise AssertionError("the subscription ended")

    async def drop(self, topic: str) -> None:
        """Drops a topic and its messages; the history writer is not told."""
        await self._admin.drop_topic(topic, force=True)

    async def samples(self) -> dict[str, list[Sample]]:
        """The samples of each topic that has some."""
        history = await self._admin.history(TOPICS, hours=1)
        return {topic: samples for topic, samples in history.items() if samples}


@pytest.fixture
async def producer(server: Server, prefix: str) -> AsyncIterator[AsyncProducer]:
    """Every topic has a message, an hour away."""
    async with AsyncProducer(settings=ProducerSettings(redis_url=server.url, prefix=prefix)) as producer:
        for topic in TOPICS:
            await producer.send(topic, b"x", delay=3_600)
        yield producer


@pytest.fixture
def server(own_server: Callable[..., Server]) -> Server:
    """One whose commands nobody else counts."""
    return own_server()


@pytest.fixture
async def turns(
    server: Server,
    prefix: str,
    producer: AsyncProducer,  # noqa: ARG001 - its topics
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Turns]:
    """A history writer that has not begun."""
    settings = ManagerSettings(redis_url=server.url, prefix=prefix)
    async with (
        AsyncConnection.of(settings, name="lisa-manager") as connection,
        AsyncAdmin(settings=settings) as admin,
    ):
        turns = Turns(server, prefix, connection, admin)
        monkeypatch.setattr(module, "server_time", lambda: command("ECHO", turns.now_ms, decode=int))
        with turns.client:
            yield turns


async def test_first_samples_are_spread_over_turns(turns: Turns) -> None:
    """Ten topics in each, or a tenth of more."""
    for count in (10, 20, 24):
        await turns.turn()
        assert len(await turns.samples()) == count


async def test_only_topics_that_change_are_sampled(turns: Turns, producer: AsyncProducer) -> None:
    """The others cost two commands a turn, and one for twenty of them."""
    for _ in range(3):
        await turns.turn()
    before = await turns.samples()
    looks = {"xinfo|stream": len(TOPICS), "hlen": len(TOPICS), "exists": 2, "xinfo|groups": 0, "zcard": 0, "zcount": 0}
    counted = {name: count_calls(turns.client, name) for name in looks}
    await turns.turn()
    assert await turns.samples() == before
    assert {name: count_calls(turns.client, name) - counted[name] for name in looks} == looks
    await producer.send("topic-07", b"x", delay=3_600)
    await turns.turn()
    after = await turns.samples()
    assert [topic for topic in TOPICS if after[topic] != before[topic]] == ["topic-07"]
    first, last, now = after["topic-07"]
    assert [first.waiting, last.waiting, now.waiting] == [1, 1, 2]
    # The last interval in which nothing had changed: a chart shows when the change was.
    assert first.at_ms < last.at_ms == now.at_ms - INTERVAL_MS


async def test_samples_go_with_their_topic(turns: Turns) -> None:
    """Also those of a manager that has not seen yet that the topic was dropped."""
    for _ in range(3):
        await turns.turn()
    await turns.drop("topic-07")
    await turns.turn()
    assert not turns.client.exists(history_key(turns.prefix, "topic-07"))
    assert turns.client.exists(history_key(turns.prefix, "topic-08"))


async def test_samples_are_written_though_the_registry_cannot_be_read(turns: Turns) -> None:
    """Of a Cluster, its node alone may be away."""
    turns.client.delete(topics_key(turns.prefix))
    turns.client.set(topics_key(turns.prefix), b"x")
    for _ in range(3):
        await turns.turn()
    assert list(await turns.samples()) == TOPICS


async def test_each_message_of_a_moment_counts(turns: Turns) -> None:
    """Messages that were due at the same time are counted one by one in events, history and metrics."""
    promoted = Promoted(1_000_000, 4, None, more=False, dues=((970, 3), (1_010, 1)))
    turns.reporter.note_promoted("topic-00", promoted)
    assert promoted.dues_ms == [970, 970, 970, 1_010]
    assert await turns.events() == {"topic-00": TopicEvents(ready=4, late_ms=90, latest_ms=30)}
    await turns.turn()
    [sample] = (await turns.samples())["topic-00"]
    assert sample.lags.counts.total() == 4
    assert sample.lags.quantile(0.25) == 0
    assert 30 <= (sample.lags.quantile(0.75) or 0) <= 36


async def test_an_unchanged_topic_is_sampled_again(turns: Turns, monkeypatch: pytest.MonkeyPatch) -> None:
    """A longer gap in a chart means that no manager ran."""
    monkeypatch.setattr(module, "_UNCHANGED", 3)
    for _ in range(3):
        await turns.turn()
    assert {len(samples) for samples in (await turns.samples()).values()} == {1}
    for _ in range(3):
        await turns.turn()
    assert {len(samples) for samples in (await turns.samples()).values()} == {2}


async def test_a_late_topic_is_sampled_at_every_turn(turns: Turns, producer: AsyncProducer) -> None:
    """Nothing of it changes but its lateness."""
    await turns.turn()
    await producer.send("topic-00", b"x", id="a")
    for _ in range(3):
        await turns.turn()
    lateness = [sample.late_ms for sample in (await turns.samples())["topic-00"]]
    assert lateness == sorted(set(lateness))
    assert len(lateness) == 4


async def test_a_change_that_could_not_be_sampled_is_sampled_later(turns: Turns, producer: AsyncProducer) -> None:
    """It changes once; the counters that tell of it could be read, and the rest of the topic could not."""
    for _ in range(3):
        await turns.turn()
    retry = ShardKeys(turns.prefix, "topic-00").of("retry")
    turns.client.set(retry, b"x")
    await producer.send("topic-00", b"x", delay=3_600)
    await turns.turn()
    assert [sample.waiting for sample in (await turns.samples())["topic-00"]] == [1]
    turns.client.delete(retry)
    await turns.turn()
    assert (await turns.samples())["topic-00"][-1].waiting == 2


@pytest.mark.parametrize("change", ["read", "ack", "nack", "reject", "cancel"])
async def test_each_change_of_a_state_is_seen(
    turns: Turns, producer: AsyncProducer, server: Server, prefix: str, change: str
) -> None:
    """The counters that tell of a change know all of them, in each of two groups."""
    settings = ConsumerSettings(redis_url=server.url, prefix=prefix)
    async with (
        AsyncConsumer("topic-00", "first", settings=settings) as other,
        AsyncConsumer("topic-00", "second", settings=settings) as consumer,
    ):
        for each in (other, consumer):
            assert await each.read() == []
        await producer.send("topic-00", b"x", id="later", delay=3_600)
        await producer.send("topic-00", b"x", id="a")
        await other.read(wait=5)
        deliveries = [] if change == "read" else await consumer.read(wait=5)
        await turns.turn()
        await turns.turn()
        before = (await turns.samples())["topic-00"][-1].at_ms
        steps: dict[str, Callable[[], Awaitable[Any]]] = {
            "read": lambda: consumer.read(wait=5),
            "ack": lambda: consumer.ack(*deliveries),
            "nack": lambda: consumer.nack(*deliveries, delay=60),
            "reject": lambda: consumer.reject(*deliveries, error="no"),
            "cancel": lambda: producer.cancel("topic-00", "later"),
        }
        await steps[change]()
        await turns.turn()
        assert (await turns.samples())["topic-00"][-1].at_ms > before


async def test_topics_that_cannot_be_sampled_hold_up_no_others(turns: Turns) -> None:
    """More than one turn samples: those whose history is no stream, and those that cannot be read."""
    for topic in TOPICS[:6]:
        turns.client.set(history_key(turns.prefix, topic), b"x")
    for topic in TOPICS[6:12]:
        key = ShardKeys(turns.prefix, topic).of("messages")
        turns.client.delete(key)
        turns.client.set(key, b"x")
    for _ in range(3):
        await turns.turn()
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        turns.client.xlen(history_key(turns.prefix, TOPICS[0]))
    assert list(await turns.samples()) == TOPICS[12:]
