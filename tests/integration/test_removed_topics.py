"""Topics that are dropped while a worker, which found them by a pattern, holds messages of them."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest
import redis

from lisa_common.model.keys import ShardKeys
from lisa_common.model.policy import Policy
from lisa_consumer import Delivery
from lisa_consumer.worker import discovery
from lisa_manager import AsyncAdmin
from lisa_producer import AsyncProducer, Message
from support import wait_until_async
from support.running import managed, new_worker, working


async def test_a_dropped_topic_takes_no_slots_of_others(
    *,
    redis_url: str,
    prefix: str,
    sender: AsyncProducer,
    admin: AsyncAdmin,
    client: redis.Redis,
    declare: Callable[..., Policy],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its message loses its lease while its batch gathers, and is skipped as handlers of another topic end."""
    monkeypatch.setattr(discovery, "_PAUSE_S", 0.1)
    declare("gone-1", visibility_ms=300)
    declare("orders")
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    ready = ShardKeys(prefix, "gone-1").of("ready")
    worker, begun, handled = new_worker(redis_url, prefix, concurrency=8), list[str](), list[str]()

    def was_skipped() -> bool:
        return "its lease ran out before its handler could begin" in caplog.text

    @worker.on("gone-*", batch=10, within=2)
    async def take(deliveries: list[Delivery]) -> None:
        handled.extend(delivery.id for delivery in deliveries)

    @worker.on("orders", concurrency=3)
    async def note(delivery: Delivery) -> None:
        begun.append(delivery.id)
        if delivery.id.startswith("early"):
            # In the very turn of the event loop, as far as possible.
            while not was_skipped():  # noqa: ASYNC110
                await asyncio.sleep(0)
        handled.append(delivery.id)

    async with managed(redis_url, prefix), working(worker):
        with caplog.at_level(logging.WARNING, "lisa_consumer"):
            await sender.send("gone-1", b"x", id="held")
            await wait_until_async(lambda: client.xinfo_groups(ready) and client.xpending(ready, "billing")["pending"])
            await sender.send_many("orders", [Message(body=b"x", id=f"early-{n}") for n in range(3)])
            await wait_until_async(lambda: len(begun) == 3)
            await admin.drop_topic("gone-1", force=True)
            await wait_until_async(lambda: len(handled) == 3, 15)
            await sender.send_many("orders", [Message(body=b"x", id=f"late-{n}") for n in range(5)])
            await wait_until_async(lambda: len(handled) == 8)
    assert errors == []
