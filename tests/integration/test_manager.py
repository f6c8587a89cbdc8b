"""Managers: when they promote, how they hear of work, and what they look after."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from itertools import count
from typing import Any

import pytest
import redis

from lisa_common.errors import Unreachable
from lisa_common.model.keys import ShardKeys, dropped_key, history_key, topics_key
from lisa_common.model.policy import Policy
from lisa_common.protocol.call import PING
from lisa_consumer import AckOutcome, AsyncConsumer, ConsumerSettings, Delivery
from lisa_manager.daemon import Manager
from lisa_manager.jobs.sweeper import Sweeper
from lisa_manager.settings import ManagerSettings
from lisa_producer import AsyncProducer, Message, ProducerSettings, State
from support import Server, keys_left, wait_until_async
from support.proxy import Proxy
from support.running import managed

Declare = Callable[..., Policy]
OwnServer = Callable[..., Server]
NEVER = {"poll_s": 60.0, "quiet_poll_s": 600.0, "discover_s": 600.0}
"""Settings of a manager that only works when woken."""


@pytest.fixture
async def consumer(redis_url: str, prefix: str) -> AsyncIterator[AsyncConsumer]:
    """Reads `orders` as the group `billing`."""
    settings = ConsumerSettings(redis_url=redis_url, prefix=prefix, block_s=0.2)
    async with AsyncConsumer("orders", "billing", settings=settings) as opened:
        yield opened


async def _collect(consumer: AsyncConsumer, count: int, timeout: float = 10) -> list[Delivery]:
    """Reads and acks `count` deliveries."""
    collected: list[Delivery] = []
    deadline = time.monotonic() + timeout
    while len(collected) < count and time.monotonic() < deadline:
        deliveries = await consumer.read(wait=0.2)
        await consumer.ack(*deliveries)
        collected += deliveries
    assert len(collected) >= count, f"{len(collected)} of {count} came within {timeout:g} s"
    return collected


def _lag_ms(delivery: Delivery) -> int:
    """How late a delivery became ready: entry ids contain the server's time."""
    return int(delivery.entry.entry.partition("-")[0]) - delivery.due_ms


async def test_messages_become_ready_at_their_due_time(
    redis_url: str, prefix: str, sender: AsyncProducer, consumer: AsyncConsumer
) -> None:
    """None is ready a millisecond early (promise 1), and most soon after."""
    async with managed(redis_url, prefix):
        await sender.send_many("orders", [Message(body=b"x", delay=0.2 + n / 150) for n in range(150)])
        lags = sorted(_lag_ms(delivery) for delivery in await _collect(consumer, 150))
    assert lags[0] >= 0
    assert lags[75] < 1_000, f"median {lags[75]} ms, most {lags[-1]} ms"


async def test_messages_gather_for_a_promotion_only_after_many(
    redis_url: str, prefix: str, sender: AsyncProducer, consumer: AsyncConsumer
) -> None:
    """Some that fall due one after another become ready one by one, at their times; later ones share a round."""
    async with managed(redis_url, prefix, **NEVER, resolution_s=1.0):
        await sender.send("orders", b"x", delay=3_600)
        await sender.send_many("orders", [Message(body=b"x", delay=1 + n / 50) for n in range(30)])
        deliveries = await _collect(consumer, 30)
    assert min(map(_lag_ms, deliveries[:3])) < 500
    assert len({delivery.due_ms + _lag_ms(delivery) for delivery in deliveries}) <= 15


async def test_a_send_wakes_a_sleeping_manager(
    redis_url: str, prefix: str, sender: AsyncProducer, consumer: AsyncConsumer
) -> None:
    """A message due before all others is on time without polling; so is one that is rescheduled to be."""
    async with managed(redis_url, prefix, **NEVER):
        await sender.send("orders", b"x", id="later", delay=3_600)
        for n in range(3):
            await sender.send("orders", b"x", id=f"m{n}", delay=0.1)
            [delivery] = await _collect(consumer, 1)
            assert delivery.id == f"m{n}"
            # By polling it would be a minute.
            assert 0 <= _lag_ms(delivery) < 20_000
        await sender.reschedule("orders", "later", delay=0.1)
        assert [delivery.id for delivery in await _collect(consumer, 1)] == ["later"]


async def test_a_retry_wakes_a_sleeping_manager(
    redis_url: str, prefix: str, sender: AsyncProducer, consumer: AsyncConsumer
) -> None:
    """A nacked message is promoted when its retry is due."""
    async with managed(redis_url, prefix, **NEVER):
        await sender.send("orders", b"x")
        [first] = await consumer.read(wait=30)
        await consumer.nack(first, delay=0.2)
        [second] = await _collect(consumer, 1)
    assert second.attempt == 2
    assert second.due_ms >= first.due_ms + 200
    assert 0 <= _lag_ms(second) < 20_000


async def test_polling_delivers_without_wakes(own_server: OwnServer, prefix: str) -> None:
    """A manager that may not subscribe polls, also for new topics: a wake is only a hint."""
    server = own_server()
    with server.client() as client:
        client.acl_setuser(
            "deaf", enabled=True, passwords=["+x"], keys=["*"], categories=["+@all"], reset_channels=True
        )
    consuming = ConsumerSettings(redis_url=server.url, prefix=prefix, block_s=0.2)
    deaf = server.url.replace("redis://", "redis://deaf:x@")
    async with (
        managed(deaf, prefix),
        AsyncProducer(settings=ProducerSettings(redis_url=server.url, prefix=prefix)) as producer,
        AsyncConsumer("orders", "billing", settings=consuming) as consumer,
    ):
        for delay in (0.1, 0.3):
            await producer.send("orders", b"x", delay=delay)
            [delivery] = await _collect(consumer, 1)
            assert 0 <= _lag_ms(delivery) < 20_000


async def test_a_broken_subscription_is_made_again(own_server: OwnServer, prefix: str) -> None:
    """It then finds what was sent meanwhile, also in new topics, without polling."""
    server = own_server()
    consuming = ConsumerSettings(redis_url=server.url, prefix=prefix, block_s=0.2)
    topics = [f"topic-{n}" for n in range(5)]
    async with (
        managed(server.url, prefix, **NEVER),
        AsyncProducer(settings=ProducerSettings(redis_url=server.url, prefix=prefix)) as producer,
        AsyncConsumer(["orders", *topics], "billing", settings=consuming) as consumer,
    ):
        await producer.send("orders", b"x", delay=0.05)
        await _collect(consumer, 1)
        with server.client() as client:
            for topic in topics:
                await wait_until_async(lambda: client.pubsub_numsub(f"{prefix}:wake")[0][1] == 1)
                client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
                await producer.send_many("orders", [Message(body=b"x", delay=0.05)])
                await producer.send_many(topic, [Message(body=b"x", delay=0.05)])
                deliveries = await _collect(consumer, 2)
                assert {delivery.topic for delivery in deliveries} == {"orders", topic}
                assert all(0 <= _lag_ms(delivery) < 5_000 for delivery in deliveries)


@pytest.mark.slow
async def test_a_subscription_that_died_in_silence_is_made_again(own_server: OwnServer, prefix: str) -> None:
    """Only what it publishes, and does not hear, reveals a half-open link. Without polling."""
    server = own_server()
    consuming = ConsumerSettings(redis_url=server.url, prefix=prefix, block_s=0.2)
    async with (
        Proxy(server.port) as proxy,
        managed(proxy.url, prefix, timeout_s=0.5, **NEVER),
        AsyncProducer(settings=ProducerSettings(redis_url=server.url, prefix=prefix)) as producer,
        AsyncConsumer("orders", "billing", settings=consuming) as consumer,
    ):
        await producer.send("orders", b"x", delay=0.05)
        await _collect(consumer, 1)
        proxy.strand()
        await producer.send("orders", b"x", delay=0.05)
        await _collect(consumer, 1)
        await producer.send("orders", b"x", delay=0.05)
        [delivery] = await _collect(consumer, 1)
        # By polling it would be a minute.
        assert 0 <= _lag_ms(delivery) < 20_000


async def test_new_topics_are_served_at_once(
    redis_url: str, prefix: str, sender: AsyncProducer, consumer: AsyncConsumer, client: redis.Redis
) -> None:
    """One send to an unknown topic is enough, even if the registry lost the topic."""
    async with managed(redis_url, prefix, **NEVER) as manager:
        await wait_until_async(lambda: client.pubsub_numsub(f"{prefix}:wake")[0][1] == 1)
        await sender.send("orders", b"x", delay=0.1)
        await _collect(consumer, 1)
        client.hdel(topics_key(prefix), "orders")
        await manager._discover()
        await sender.send("orders", b"x", delay=0.1)
        await _collect(consumer, 1)
        assert client.hget(topics_key(prefix), "orders") == b"{}"


async def test_a_late_look_at_the_registry_undoes_no_later_one(
    redis_url: str, prefix: str, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wake of an unknown topic brings one while another is under way."""
    has_read, goes_on, trips = asyncio.Event(), asyncio.Event(), count(1)
    manager = Manager(ManagerSettings(redis_url=redis_url, prefix=prefix))
    run = manager._connection.run

    async def slowly(flow: Any, **options: Any) -> Any:
        if next(trips) == 2:
            has_read.set()
            await goes_on.wait()
        return await run(flow, **options)

    monkeypatch.setattr(manager._connection, "run", slowly)
    async with manager._connection:
        looks = [asyncio.create_task(manager._discover())]
        await has_read.wait()
        client.hset(topics_key(prefix), "new", "{}")
        looks.append(asyncio.create_task(manager._discover()))
        for _ in range(20):
            await manager._connection.call(PING)
        goes_on.set()
        await asyncio.gather(*looks)
    assert "new" in manager._table.shards


async def test_a_changed_policy_is_taken_over(
    redis_url: str, prefix: str, sender: AsyncProducer, consumer: AsyncConsumer, declare: Declare
) -> None:
    """Leases from before a lower visibility timeout keep theirs; all else applies at once."""
    declare(visibility_ms=3_600_000)
    async with managed(redis_url, prefix) as manager:
        await wait_until_async(lambda: "orders" in manager._table.shards)
        shard = manager._table.shards["orders"]
        await sender.send_many("orders", [Message(body=b"x", id="kept"), Message(body=b"x", id="extended")])
        [kept, extended] = await consumer.read(wait=30)
        await wait_until_async(lambda: shard.pending.get("billing"))
        declare(visibility_ms=100, backoff="fixed", backoff_base_ms=1)
        await wait_until_async(lambda: shard.policy.visibility_ms == 100)
        assert await consumer.extend(extended, lease=0.2) == [True]
        [again] = await _collect(consumer, 1)
        assert (again.id, again.attempt) == ("extended", 2)
        assert manager._reclaimer.reclaimed == 1
        assert await consumer.ack(kept) == ["acked"]


async def test_a_mark_ends_while_the_registry_stays(redis_url: str, prefix: str, client: redis.Redis) -> None:
    """Turns that find an unchanged registry still check the marks of drops and the shards served for them."""
    async with managed(redis_url, prefix, **NEVER) as manager:
        client.hset(dropped_key(prefix), "late", int(time.time() * 1000))
        await manager._discover()
        assert set(manager._table.shards) == {"late"}
        client.hset(dropped_key(prefix), "late", 1)
        await manager._discover()
        assert not client.hgetall(dropped_key(prefix))
        await manager._discover()
        assert not manager._table.shards


async def test_dropped_topics_are_retired(
    redis_url: str, prefix: str, sender: AsyncProducer, client: redis.Redis, declare: Declare
) -> None:
    """A topic dropped long ago ends if it is empty, and is declared again if somebody has sent to it since."""
    registry, dropped, now_ms = topics_key(prefix), dropped_key(prefix), int(time.time() * 1000)
    await sender.send("again", b"x", delay=60)
    client.hdel(registry, "again")
    client.hset(dropped, mapping={"empty": 1, "again": 1, "anew": now_ms, "recent": now_ms, "damaged": "when?"})
    declare("anew")
    declare("orders")
    client.xadd(history_key(prefix, "empty"), {"s": "left of a drop that was broken off"})
    async with managed(redis_url, prefix) as manager:
        await wait_until_async(lambda: sorted(manager._table.shards) == ["again", "anew", "orders", "recent"])
        assert not client.exists(history_key(prefix, "empty"))
        assert sorted(client.hkeys(registry)) == [b"again", b"anew", b"orders"]
        # What this turn declared, the next one finds declared.
        await wait_until_async(lambda: client.hgetall(dropped) == {b"recent": str(now_ms).encode()})
        client.hdel(registry, "orders")
        await wait_until_async(lambda: sorted(manager._table.shards) == ["again", "anew", "recent"])


async def test_a_reader_brings_no_topic_back(
    redis_url: str, prefix: str, sender: AsyncProducer, consumer: AsyncConsumer, client: redis.Redis
) -> None:
    """It creates the stream and its group again, for later sends, but that is no send."""
    await consumer.read()
    client.delete(f"{prefix}:{{orders}}:ready")
    client.hset(dropped_key(prefix), "orders", 1)
    await consumer.read()
    async with managed(redis_url, prefix, **NEVER) as manager:
        await manager._discover()
        assert keys_left(client, prefix) == [f"{prefix}:{{orders}}:ready"]
        await manager._discover()
        assert not manager._table.shards
    await sender.send("orders", b"x", id="m")
    assert [delivery.id for delivery in await consumer.read()] == ["m"]


async def test_messages_beyond_any_reshard_are_logged_and_kept(
    redis_url: str, prefix: str, sender: AsyncProducer, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """A message of a dropped topic that was declared again with another number of shards, until it is gone."""
    client.hset(topics_key(prefix), "orders", '{"shards":2}')
    await sender.send("orders", b"x", id="m", delay=60)
    client.hset(topics_key(prefix), "orders", "{}")
    client.hset(dropped_key(prefix), "orders", '1 {"shards":2}')
    problem = "drop of orders failed: former shards are still in use: orders/"
    async with managed(redis_url, prefix, **NEVER) as manager:
        for _ in range(3):
            await manager._discover()
        assert set(manager._table.shards) == {"orders", "orders/0", "orders/1"}
        assert caplog.text.count(problem) == 1
        assert await sender.cancel("orders", "m") == "cancelled"
        # Repeats of the send know it for a minute.
        client.delete(*(ShardKeys(prefix, "orders", shard).of("finished") for shard in "01"))
        await manager._discover()
        assert not client.exists(dropped_key(prefix))


@pytest.mark.parametrize("broken", ["waiting", "retry", "ready", "messages", "owed", "failures", "garbage", "expiring"])
async def test_a_broken_topic_does_not_delay_others(
    *,
    redis_url: str,
    prefix: str,
    sender: AsyncProducer,
    consumer: AsyncConsumer,
    client: redis.Redis,
    broken: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A key of a foreign type costs its own topic and a line in the log, and no other topic (promise 12)."""
    bad = ShardKeys(prefix, "bad")
    client.hset(topics_key(prefix), "bad", "{}")
    client.set(bad.of(broken), "none of ours")
    for name in {"waiting", "retry", "expiring", "garbage"} - {broken}:
        client.zadd(bad.of(name), {"billing/x" if name in {"retry", "garbage"} else "x": 1})
    lags: list[int] = []
    async with managed(redis_url, prefix):
        for _ in range(3):
            await sender.send("orders", b"x", delay=0.05)
            lags.append(_lag_ms((await _collect(consumer, 1))[0]))
    assert 0 <= min(lags) < 1_000
    assert "cannot promote" not in caplog.text, "a problem of one topic is not one of the server"
    problems = [record.getMessage() for record in caplog.records if "WRONGTYPE" in record.getMessage()]
    assert len(problems) == len(set(problems)), "each is logged once"


async def test_a_damaged_registry_does_not_stop_the_manager(
    redis_url: str, prefix: str, sender: AsyncProducer, consumer: AsyncConsumer, client: redis.Redis
) -> None:
    """Fields that are no topics are skipped; the default replaces an unreadable policy."""
    client.hset(topics_key(prefix), mapping={b"\xff": "{}", "a b": "{}", "": "{}", "orders": '{"visibility_ms": "x"}'})
    async with managed(redis_url, prefix) as manager:
        await sender.send("orders", b"x", delay=0.05)
        await _collect(consumer, 1)
        assert list(manager._table.shards) == ["orders"]
        assert manager._table.shards["orders"].policy == Policy()


async def test_foreign_wakes_are_harmless(
    redis_url: str, prefix: str, sender: AsyncProducer, consumer: AsyncConsumer, client: redis.Redis
) -> None:
    """Foreign messages on the channel neither stop the manager nor declare topics with bad names."""
    async with managed(redis_url, prefix) as manager:
        await wait_until_async(lambda: client.pubsub_numsub(f"{prefix}:wake")[0][1] == 1)
        await sender.send("orders", b"x", delay=3_600)
        await wait_until_async(lambda: "orders" in manager._table.shards)
        dues = (b"", b" -1", b" 1e9", b" " + b"9" * 400, b" " + b"9" * 5_000, " ²".encode())
        for wake in (b"", b"\xff\xfe 1", b"a/b 5", *(b"orders" + due for due in dues)):
            client.publish(f"{prefix}:wake", wake)
        await sender.send("orders", b"x", delay=0.1)
        await _collect(consumer, 1)
        assert list(manager._table.shards) == ["orders"]


async def test_two_managers_do_the_work_of_one(
    redis_url: str, prefix: str, sender: AsyncProducer, consumer: AsyncConsumer
) -> None:
    """Either promotes every message once; nothing changes when one of them stops."""
    async with managed(redis_url, prefix) as first:
        async with managed(redis_url, prefix) as second:
            await sender.send_many("orders", [Message(body=b"x", delay=(n + 1) / 500) for n in range(500)])
            await wait_until_async(lambda: first._promoter.promoted + second._promoter.promoted > 250)
        deliveries = await _collect(consumer, 500)
    assert len({delivery.id for delivery in deliveries}) == len(deliveries) == 500
    assert min(map(_lag_ms, deliveries)) >= 0
    assert {delivery.attempt for delivery in deliveries} == {1}


async def test_housekeeping(
    *,
    redis_url: str,
    prefix: str,
    sender: AsyncProducer,
    consumer: AsyncConsumer,
    client: redis.Redis,
    declare: Declare,
) -> None:
    """Expired messages become garbage and garbage goes; acked entries are trimmed; finished ids are forgotten."""
    declare(dedup_window_ms=300, garbage_retention_ms=600)
    ready = ShardKeys(prefix, "orders").of("ready")
    async with managed(redis_url, prefix):
        await sender.send("orders", b"x", id="expiring", ttl=0.05)
        await wait_until_async(lambda: _is(sender, "expiring", State.GARBAGE))
        await wait_until_async(lambda: _is(sender, "expiring", None))
        await sender.send("orders", b"x", id="acked")
        await _collect(consumer, 1)
        assert await _is(sender, "acked", State.FINISHED)
        await wait_until_async(lambda: _is(sender, "acked", None))
        await wait_until_async(lambda: client.xlen(ready) == 0)


async def _is(sender: AsyncProducer, id: str, state: State | None) -> bool:
    message = await sender.find("orders", id)
    return (message and message.state) == state


async def test_a_full_server_still_drains(own_server: OwnServer, prefix: str) -> None:
    """Without memory for sends, waiting messages are still promoted, retried, read and acked."""
    server = own_server()
    consuming = ConsumerSettings(redis_url=server.url, prefix=prefix, block_s=0.2)
    async with (
        managed(server.url, prefix),
        AsyncProducer(settings=ProducerSettings(redis_url=server.url, prefix=prefix)) as producer,
        AsyncConsumer("orders", "billing", settings=consuming) as consumer,
    ):
        assert await consumer.read() == []
        await producer.send("orders", b"x", delay=0.3)
        with server.client() as client:
            client.config_set("maxmemory", "1mb")
            [first] = await consumer.read(wait=30)
            await consumer.nack(first, delay=0.1)
            [second] = await consumer.read(wait=30)
            assert await consumer.ack(second) == [AckOutcome.ACKED]
            assert second.attempt == 2


async def test_a_stop_during_work_is_not_lost(redis_url: str, prefix: str, sender: AsyncProducer) -> None:
    """A manager stops at any point of its work."""
    enough = asyncio.Event()

    async def send() -> None:
        while not enough.is_set():
            await sender.send("orders", b"x", delay=0.002)

    sending = asyncio.create_task(send())
    for n in range(40):
        manager = Manager(ManagerSettings(redis_url=redis_url, prefix=prefix))
        running = asyncio.create_task(manager.run())
        await wait_until_async(lambda manager=manager: manager._promoter.promoted > 1)
        for _ in range(n):
            await asyncio.sleep(0)  # another turn of the loop, to stop at another point
        manager.stop()
        await wait_until_async(running.done)
        await running
    enough.set()
    await sending


async def test_a_stop_waits_for_running_turns(redis_url: str, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cancelled job may take a while to end, and can use the connection until then."""
    began, ended = asyncio.Event(), asyncio.Event()

    async def turn(_: Sweeper) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)
            ended.set()

    monkeypatch.setattr(Sweeper, "turn", turn)
    async with managed(redis_url, prefix):
        await began.wait()
    assert ended.is_set()


async def test_a_manager_does_not_start_without_a_server(own_server: OwnServer, prefix: str) -> None:
    """It raises at start, as a wrong URL is the likeliest reason."""
    server = own_server()
    await asyncio.to_thread(server.stop)
    with pytest.raises(Unreachable, match=str(server.port)):
        await Manager(ManagerSettings(redis_url=server.url, prefix=prefix)).run()


async def test_a_server_may_go_and_come_back(own_server: OwnServer, prefix: str, caplog: Any) -> None:
    """A manager survives it, logs it once, and delivers what fell due meanwhile (promise 14)."""
    server = own_server(appendonly="yes")
    consuming = ConsumerSettings(redis_url=server.url, prefix=prefix, block_s=0.2)
    async with (
        managed(server.url, prefix) as manager,
        AsyncProducer(settings=ProducerSettings(redis_url=server.url, prefix=prefix)) as producer,
        AsyncConsumer("orders", "billing", settings=consuming) as consumer,
    ):
        await producer.send("orders", b"x", id="before", delay=0.5)
        await wait_until_async(lambda: "orders" in manager._table.shards)
        await asyncio.to_thread(server.stop)
        await wait_until_async(lambda: "cannot promote" in caplog.text)
        await asyncio.to_thread(server.start)
        assert [delivery.id for delivery in await _collect(consumer, 1)] == ["before"]
        await producer.send("orders", b"x", id="after", delay=0.1)
        assert [delivery.id for delivery in await _collect(consumer, 1)] == ["after"]
    assert caplog.text.count("cannot promote") == 1
