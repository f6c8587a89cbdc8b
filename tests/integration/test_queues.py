"""The deliveries that a worker holds: which of them its server takes for begun."""

import asyncio
from collections.abc import Callable

import redis

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.client.async_tasks import cancel_all
from lisa_common.model.keys import ShardKeys
from lisa_common.model.policy import Policy
from lisa_common.protocol.marking import Begun
from lisa_consumer import AsyncConsumer, ConsumerSettings
from lisa_consumer.worker.concurrency import ConcurrencyLimit
from lisa_consumer.delivery.core import Core
from lisa_consumer.worker.held import HeldDelivery
from lisa_consumer.worker.queue import Queues
from lisa_producer import AsyncProducer, State
from support import wait_until_async
from support.holding import hold
from support.housekeeping import Housekeeper


async def test_an_alone_delivery_that_is_let_go_does_not_die(
    *,
    redis_url: str,
    prefix: str,
    connection: AsyncConnection,
    sender: AsyncProducer,
    declare: Callable[..., Policy],
    client: redis.Redis,
) -> None:
    """Its lease ran out before its handler was called: whatever it was marked as, it has not begun."""
    housekeeper = Housekeeper(connection, prefix, declare(max_retries=0))
    core, begun = Core(prefix, "billing"), list[HeldDelivery]()
    queues = Queues(
        *(connection, core, ConcurrencyLimit(1, {"orders": 1}), asyncio.Event()),
        begin=begun.extend,
        soon=lambda _: 0,
        may_begin=lambda _: True,
    )
    await sender.send("orders", b"x", id="innocent")
    settings = ConsumerSettings(redis_url=redis_url, prefix=prefix)
    async with AsyncConsumer("orders", "billing", settings=settings) as died:
        await died.read(wait=10)
    await housekeeper.reclaim("orders", "billing", after_s=60)
    await housekeeper.promote("orders", after_s=120)

    ready = ShardKeys(prefix, "orders").of("ready")

    def mark() -> int:
        return int(client.xpending_range(ready, "billing", "-", "+", 1)[0]["times_delivered"])

    marking = asyncio.create_task(queues.run())
    queues.add(hold(await connection.run(core.read(["orders"], limit=1)), is_begun=False))
    await wait_until_async(lambda: begun)
    assert begun[0].delivery.alone
    assert mark() == Begun.ALONE
    queues.drop(begun[0])
    await wait_until_async(lambda: mark() == Begun.NOT)
    await cancel_all(marking)
    await housekeeper.reclaim("orders", "billing", after_s=60)
    status = await sender.find("orders", "innocent")
    assert status is not None
    assert (status.state, status.attempts) == (State.READY, 1)
