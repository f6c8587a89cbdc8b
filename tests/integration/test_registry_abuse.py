"""Hostile writes of a producer about topics cost a manager little, and declare nothing."""

import asyncio
import json
import logging
import resource
from typing import Any

import pytest
import redis

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.errors import InvalidInput
from lisa_common.model.keys import ShardKeys, topics_key, wake_channel
from lisa_common.model.policy import DEFAULT_POLICY, MAX_SERVED, Policy
from lisa_common.model.sharding import Layout
from lisa_common.protocol.registry import parse_topic
from lisa_manager.jobs.discoverer import Discoverer
from lisa_manager.shard_table import ShardTable
from lisa_producer import AsyncProducer, ProducerSettings
from support import wait_until_async
from support.plain import node_of
from support.running import managed


@pytest.mark.parametrize(
    "policy",
    [
        {"former": [256] * 1_000_000},
        {"former": [256] * 900},
        {"former": [1] * 1_001},
        {"drained": [-1]},
        {"drained": list(range(1_001))},
        {"drained": [10**30]},
        {"max_retries": 1, "x" * 1_000_000: 1},
    ],
    ids=["a million", "many shards", "many reshards", "negative", "many drained", "huge", "long"],
)
def test_a_policy_has_bounds(policy: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    """Defaults replace what is beyond them, with one short line in the log."""
    stored = json.dumps(policy).encode()
    with pytest.raises(InvalidInput):
        Policy.load(stored)
    for _ in range(3):
        assert parse_topic("orders", stored).policy == DEFAULT_POLICY
    [record] = caplog.records
    assert len(record.getMessage()) < 600


def test_policies_of_many_reshards_are_allowed() -> None:
    """Hundreds of reshards over the years; only the latest former shards still hold messages."""
    policy = Policy.of({"shards": 256, "former": [256] * 900, "drained": list(range(897))})
    assert Policy.load(policy.dump()) == policy
    assert len(Layout("lisa", "orders", policy).served) == 4 * 256 < MAX_SERVED


async def test_wakes_declare_nothing(redis_url: str, client: redis.Redis, prefix: str) -> None:
    """With 100,000 names published, the manager's memory and time are bounded, and it serves other topics."""
    channel = wake_channel(prefix)
    settings = ProducerSettings(redis_url=redis_url, prefix=prefix)

    def publish() -> None:
        for start in range(0, 100_000, 1_000):
            pipeline = node_of(client, channel).pipeline(transaction=False)
            for number in range(start, start + 1_000):
                pipeline.publish(channel, f"topic-{number} 1")
            pipeline.execute()

    async with AsyncProducer(settings=settings) as producer, managed(redis_url, prefix) as manager:
        await producer.send("orders", b"x", id="before")
        await wait_until_async(lambda: "orders" in manager._table.shards)
        before = resource.getrusage(resource.RUSAGE_SELF)
        await asyncio.to_thread(publish)
        await producer.send("shoes", b"x", delay=60)
        await wait_until_async(lambda: "shoes" in manager._table.shards)
        after = resource.getrusage(resource.RUSAGE_SELF)
    assert sorted(client.hkeys(topics_key(prefix))) == [b"orders", b"shoes"]
    assert after.ru_maxrss - before.ru_maxrss < 30_000, "KiB"
    assert after.ru_utime - before.ru_utime < 30


async def test_a_send_declares_what_the_registry_lost(redis_url: str, client: redis.Redis, prefix: str) -> None:
    """A wake for a topic with messages has the topic declared and served."""
    keys = ShardKeys(prefix, "lost")
    async with managed(redis_url, prefix, discover_s=60) as manager:
        await wait_until_async(lambda: client.pubsub_numsub(wake_channel(prefix))[0][1] == 1)
        client.publish(wake_channel(prefix), "nobody 1")
        client.hset(keys.of("messages"), "m", b"x")
        client.publish(wake_channel(prefix), "lost 1")
        await wait_until_async(lambda: "lost" in manager._table.shards)
    assert client.hkeys(topics_key(prefix)) == [b"lost"]


async def test_a_topic_of_many_shards_is_logged_once(
    connection: AsyncConnection, client: redis.Redis, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One line when it comes and one when it goes: thousands of lines would delay other topics."""
    caplog.set_level(logging.INFO, "lisa_manager")
    discoverer = Discoverer(connection, ShardTable(prefix, fallback_s=1))
    client.hset(topics_key(prefix), "orders", Policy(shards=256).dump())
    await discoverer.turn()
    client.delete(topics_key(prefix))
    await discoverer.turn()
    assert [record.getMessage() for record in caplog.records] == [
        "serving topic orders, shards: 256",
        "removed topic orders, shards: 256",
    ]
