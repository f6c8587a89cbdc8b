"""Quiet topics cost little, and nothing in them is missed."""

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given, strategies as st

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.model.keys import ShardKeys
from lisa_common.model.sharding import Layout
from lisa_common.protocol.consuming import server_time
from lisa_consumer import AsyncConsumer, ConsumerSettings
from lisa_manager.due_queue import DueQueue
from lisa_manager.jobs.promoter import Promoter
from lisa_manager.jobs.reporter import Reporter
from lisa_manager.settings import ManagerSettings
from lisa_manager.shard_table import ShardTable
from lisa_producer import AsyncProducer, ProducerSettings
from support import Server, count_calls, wait_until_async
from support.plain import plain_client
from support.running import hang, managed, new_worker, working

TOPICS = 20


async def _fill(url: str, prefix: str) -> None:
    """A message waits in each topic, for an hour."""
    async with AsyncProducer(settings=ProducerSettings(redis_url=url, prefix=prefix)) as producer:
        for number in range(TOPICS):
            await producer.send(f"topic-{number}", b"x", delay=3_600)


@pytest.mark.slow
async def test_quiet_topics_cost_plain_looks_only(own_server: Callable[..., Server], prefix: str) -> None:
    """While nothing is due no script runs, and a check is one command; a wake still works."""
    server = own_server()
    settings = ProducerSettings(redis_url=server.url, prefix=prefix)
    async with AsyncProducer(settings=settings) as producer:
        for number in range(TOPICS):
            await producer.send(f"topic-{number}", b"x", delay=3_600)
        with server.client() as client:
            async with managed(server.url, prefix, quiet_poll_s=0.3, discover_s=600):
                await wait_until_async(lambda: count_calls(client, "zrange") > 12 * TOPICS)
                scripts, looks = count_calls(client, "evalsha"), count_calls(client, "zrange")
                await wait_until_async(lambda: count_calls(client, "zrange") >= looks + 6 * TOPICS)
                assert count_calls(client, "evalsha") == scripts
                await producer.send("topic-7", b"x", delay=0.05)
                await wait_until_async(lambda: client.xlen(f"{prefix}:{{topic-7}}:ready") == 1)


async def test_one_command_tells_that_no_topic_has_schedules(
    own_server: Callable[..., Server], prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A manager looks for them every few seconds, in case a wake was lost."""
    monkeypatch.setattr("lisa_manager.jobs.ticker._SCAN_S", 0.1)
    monkeypatch.setattr("lisa_manager.jobs.ticker._MIGRATE_S", 0)
    server = own_server()
    await _fill(server.url, prefix)
    with server.client() as client:
        async with managed(server.url, prefix, quiet_poll_s=10, discover_s=600, housekeeping_s=0.05):
            await wait_until_async(lambda: count_calls(client, "zrange") >= TOPICS)
            looks, scans = count_calls(client, "exists"), count_calls(client, "hgetall")
            # Here each look for schedules ends with one for those that older releases have stored.
            await wait_until_async(lambda: count_calls(client, "hgetall") >= scans + 10)
            assert count_calls(client, "exists") < looks + 3 * TOPICS


async def test_a_read_that_waits_in_vain_is_one_command(own_server: Callable[..., Server], prefix: str) -> None:
    """The server has looked until the end of the wait; nobody needs to ask again."""
    server = own_server()
    settings = ConsumerSettings(redis_url=server.url, prefix=prefix)
    async with AsyncConsumer("orders", "billing", settings=settings) as consumer:
        await consumer.read()
        taken = []
        with server.client() as client:
            for _ in range(3):
                before = count_calls(client, "xreadgroup")
                assert await consumer.read(wait=0.1) == []
                taken.append(count_calls(client, "xreadgroup") - before)
    # A server's clock may be a little ahead.
    assert min(taken) == 1


async def test_a_worker_shows_by_one_command_that_it_is_alive(
    own_server: Callable[..., Server], prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In all of its topics; one that is damaged costs a command for each, and keeps it from no other."""
    monkeypatch.setattr("lisa_consumer.worker.oversight._BEAT_S", 0.1)
    server = own_server()
    streams = [ShardKeys(prefix, f"topic-{number}").of("ready") for number in range(TOPICS)]
    worker = new_worker(server.url, prefix, block_s=30)
    for number in range(TOPICS):
        hang(worker, f"topic-{number}", asyncio.Event(), concurrency=1)
    with server.client() as client:
        async with working(worker):
            await wait_until_async(lambda: client.exists(*streams) == TOPICS)
            await wait_until_async(lambda: all(len(client.xinfo_consumers(each, "billing")) == 1 for each in streams))
            reads = count_calls(client, "xreadgroup")
            await wait_until_async(lambda: count_calls(client, "xreadgroup") >= reads + 5)
            assert count_calls(client, "xreadgroup") < reads + TOPICS
            client.delete(streams[0])
            client.set(streams[0], b"x")
            for each in streams[1:]:
                client.xgroup_delconsumer(each, "billing", f"{worker.name}~")
            await wait_until_async(
                lambda: all(len(client.xinfo_consumers(each, "billing")) == 1 for each in streams[1:])
            )
            worker.stop()
            async with AsyncProducer(settings=ProducerSettings(redis_url=server.url, prefix=prefix)) as producer:
                await producer.send("topic-1", b"ends the last read")


async def test_one_command_tells_that_no_stream_has_entries(own_server: Callable[..., Server], prefix: str) -> None:
    """A manager looks for deliveries that it does not know of."""
    server = own_server()
    await _fill(server.url, prefix)
    with server.client() as client:
        async with managed(server.url, prefix, quiet_poll_s=0.1, discover_s=600, housekeeping_s=0.05):
            await wait_until_async(lambda: count_calls(client, "xread") > 0)
            looks, lengths = count_calls(client, "xread"), count_calls(client, "xlen")
            await wait_until_async(lambda: count_calls(client, "xread") >= looks + 5)
            assert count_calls(client, "xlen") == lengths


@pytest.mark.parametrize("damaged", [False, True])
async def test_deliveries_of_a_quiet_topic_are_found(
    own_server: Callable[..., Server], prefix: str, *, damaged: bool
) -> None:
    """The manager sees nothing of a message that is due now, but reclaims it when its consumer dies.

    Also beside a topic whose stream cannot be read.
    """
    server = own_server()
    async with AsyncProducer(settings=ProducerSettings(redis_url=server.url, prefix=prefix)) as producer:
        with server.client() as client:
            for topic in ("orders", "invoices"):
                client.hset(f"{prefix}:topics", topic, '{"visibility_ms": 300, "backoff_base_ms": 50}')
            async with managed(server.url, prefix, quiet_poll_s=0.3):
                await wait_until_async(lambda: count_calls(client, "xread") > 0)
                if damaged:
                    client.set(ShardKeys(prefix, "invoices").of("ready"), b"x")
                await producer.send("orders", b"x")
                consuming = ConsumerSettings(redis_url=server.url, prefix=prefix)
                async with AsyncConsumer("orders", "billing", settings=consuming) as consumer:
                    assert len(await consumer.read(wait=30)) == 1
                    again = await consumer.read(wait=30)
                    assert [delivery.attempt for delivery in again] == [2]


async def test_a_retry_of_a_quiet_topic_is_found(redis_url: str, prefix: str) -> None:
    """Also without a wake, which is only a hint, and beside a topic without retries."""
    keys = ShardKeys(prefix, "orders")
    consuming = ConsumerSettings(redis_url=redis_url, prefix=prefix)
    async with (
        AsyncProducer(settings=ProducerSettings(redis_url=redis_url, prefix=prefix)) as producer,
        AsyncConsumer("orders", "billing", settings=consuming) as consumer,
    ):
        for topic in ("orders", "invoices"):
            await producer.send(topic, b"x", delay=3_600)
        await producer.send("orders", b"x", id="a")
        [delivery] = await consumer.read(wait=30)
        async with managed(redis_url, prefix, quiet_poll_s=0.3) as manager:
            await wait_until_async(lambda: [shard.calm for shard in manager._table.shards.values()] == [True] * 2)
            with plain_client(redis_url) as client:
                client.xack(keys.of("ready"), "billing", delivery.entry.entry)
                client.zadd(keys.of("retry"), {"billing/a": delivery.due_ms})
            assert [delivery.attempt for delivery in await consumer.read(wait=30)] == [2]


@pytest.mark.parametrize("calm", [False, True])
async def test_a_wake_during_a_look_is_not_forgotten(redis_url: str, prefix: str, *, calm: bool) -> None:
    """The look may have come before the send, so its result does not delay the wake."""
    settings = ManagerSettings(redis_url=redis_url, prefix=prefix)
    table = ShardTable(prefix, fallback_s=settings.poll_s)
    table.update([Layout(prefix, "orders")])
    table.shards["orders"].calm = calm
    async with AsyncConnection.of(settings, name="test") as connection:
        promoter = Promoter(connection, table, settings, Reporter(connection, table.prefix))
        promoter._listening = True
        now_ms = await connection.call(server_time())
        look = asyncio.create_task(promoter._look(table.take_due(table.promotions)))
        await asyncio.sleep(0)
        promoter._clock_of(table.shards["orders"]).see(now_ms, table.clock(), table.clock())
        promoter._hear(b"orders %d" % (now_ms + 700))
        await look
    moment = table.promotions.next_moment()
    assert moment is not None
    assert moment - table.clock() < 0.8


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("put"), st.sampled_from("abc"), st.integers(0, 9)),
            st.tuples(st.just("hasten"), st.sampled_from("abc"), st.integers(0, 9)),
            st.tuples(st.just("add"), st.sampled_from("abc"), st.integers(0, 9)),
            st.tuples(st.just("drop"), st.sampled_from("abc"), st.just(0)),
            st.tuples(st.just("take"), st.just(""), st.integers(0, 9)),
        )
    )
)
def test_a_due_queue_is_a_map_of_moments(steps: list[tuple[str, str, int]]) -> None:
    """However tags are moved, each has one moment, and is taken once when it is due."""
    queue, moments = DueQueue(), dict[str, float]()
    for step, tag, moment in steps:
        if step == "take":
            due = {tag for tag, at in moments.items() if at <= moment}
            taken = queue.take_due(moment, again=moment + 5)
            assert (set(taken), len(taken)) == (due, len(due))
            moments |= dict.fromkeys(due, moment + 5)
        elif step == "put":
            queue.put(tag, moment)
            moments[tag] = moment
        elif step == "add":
            queue.add(tag, moment)
            moments.setdefault(tag, moment)
        elif step == "drop":
            queue.drop(tag)
            moments.pop(tag, None)
        else:
            hastened = tag in moments and moment < moments[tag]
            assert queue.hasten(tag, moment) == hastened
            moments |= {tag: moment} if hastened else {}
        assert queue.next_moment() == min(moments.values(), default=None)
