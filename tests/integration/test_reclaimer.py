"""The reclaimer: leases of any length end in time, and no topic waits for another."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import redis

from lisa_common.model.failure import read_failure
from lisa_common.model.keys import ShardKeys
from lisa_common.model.policy import Policy
from lisa_consumer import AsyncConsumer, ConsumerSettings
from lisa_manager.shard_table import WatchedShard
from lisa_producer import AsyncProducer, Message
from support import wait_until_async
from support.housekeeping import server_ms
from support.running import managed

Declare = Callable[..., Policy]


def test_leases_of_a_visibility_timeout_that_was_lowered() -> None:
    """They keep it for as long as any may have it, and while workers may not have read the new one."""
    shard = WatchedShard(ShardKeys("lisa", "orders"), Policy(visibility_ms=60_000))
    shard.set_policy(Policy(visibility_ms=30_000), now=0)
    shard.set_policy(Policy(visibility_ms=45_000), now=10)
    shard.set_policy(Policy(visibility_ms=1_000), now=20)
    longest = [shard.visibility_ms(now) for now in (20, 69.9, 70, 74.9, 75)]
    assert longest == [60_000, 60_000, 45_000, 45_000, 1_000]


@pytest.mark.parametrize("lease_s", [0.3, 1.5])
async def test_short_leases_are_reclaimed_in_time(
    redis_url: str, prefix: str, sender: AsyncProducer, client: redis.Redis, lease_s: float
) -> None:
    """However long the topic's visibility timeout is, even if nothing was pending for long."""
    settings = {"quiet_poll_s": 60, "housekeeping_s": 0.2}
    async with managed(redis_url, prefix, **settings) as manager:
        await wait_until_async(lambda: manager._promoter._listening)
        await sender.send("orders", b"x", id="a")
        await wait_until_async(lambda: "orders" in manager._table.shards)
        given = ConsumerSettings(redis_url=redis_url, prefix=prefix)
        async with AsyncConsumer("orders", "billing", settings=given) as consumer:
            [delivery] = await consumer.read(wait=30, visibility=lease_s)
        began = await server_ms(manager._connection)
        await wait_until_async(lambda: manager._reclaimer.reclaimed)
        taken_ms = await server_ms(manager._connection) - began
    failure = read_failure(client.hget(ShardKeys(prefix, "orders").of("failures"), f"{delivery.group}/a"))
    assert failure is not None
    assert failure.error == f"not acked within its lease of {lease_s * 1000:.0f} ms"
    assert failure.at_ms - began <= lease_s * 1000 + 1_000
    assert taken_ms >= lease_s * 1000 - 200


async def test_much_to_reclaim_in_one_topic_delays_no_other(
    redis_url: str, prefix: str, sender: AsyncProducer, client: redis.Redis, declare: Declare
) -> None:
    """Topics are reclaimed in parallel, and each for a limited time."""
    names = [f"t{n}" for n in range(12)]
    for name in ("large", *names):
        declare(name, visibility_ms=300, backoff_base_ms=3_600_000)
    settings = ConsumerSettings(redis_url=redis_url, prefix=prefix)
    async with AsyncConsumer(["large", *names], "billing", settings=settings) as reader:
        await reader.read()
        for name in names:
            await sender.send(name, b"x")
        await sender.send_many("large", [Message(body=b"x") for _ in range(3_000)])
        taken: Counter[str] = Counter()
        while taken.total() < 3_000 + len(names):
            taken.update(delivery.topic for delivery in await reader.read(1_000, wait=10))

    def has_run_out(name: str) -> bool:
        [pending] = client.xpending_range(ShardKeys(prefix, name).of("ready"), "billing", "-", "+", 1)
        return bool(pending["time_since_delivered"] > 300)

    # Otherwise the leases of the large topic, which may be older, would rightly be reclaimed first.
    await wait_until_async(lambda: all(map(has_run_out, names)))
    order: list[str] = []
    async with managed(redis_url, prefix, housekeeping_batch=5) as manager:
        step = manager._reclaimer._step

        async def noted(shard: WatchedShard, *more: Any) -> Any:
            result = await step(shard, *more)
            if result.count:
                order.append(shard.tag)
            return result

        manager._reclaimer._step = noted  # type: ignore[method-assign]
        await wait_until_async(lambda: {*names, "large"} <= {*order})
        await wait_until_async(lambda: manager._reclaimer.reclaimed == 3_000 + len(names), timeout=30)
    last = max(order.index(name) for name in names)
    assert order[:last].count("large") < 300
