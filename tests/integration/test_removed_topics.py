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
from support.keys import keys_left
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
            await wait_until_async(lambda: len(handled) == 3)
            await sender.send_many("orders", [Message(body=b"x", id=f"late-{n}") for n in range(5)])
            await wait_until_async(lambda: len(handled) == 8)
    assert errors == []


async def test_a_dropped_topic_leaves_nothing(
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
    """No stream at the server, and no pace of lease rounds in the worker. Declared again, it is served again."""
    monkeypatch.setattr(discovery, "_PAUSE_S", 0.1)
    names = [f"job-{n}" for n in range(12)]
    worker, handled = new_worker(redis_url, prefix), list[str]()

    @worker.on("job-*", "kept-*")
    async def note(delivery: Delivery) -> None:
        handled.append(delivery.topic)

    async with working(worker):
        with caplog.at_level(logging.INFO, "lisa_consumer"):
            declare("kept-1", visibility_ms=60_000)
            for name in names:
                declare(name, visibility_ms=200)
                await sender.send(name, b"x")
            await wait_until_async(lambda: sorted(handled) == sorted(names))
            assert worker._life is not None
            assert worker._life.leases.pause_s < 1
            for name in names:
                await admin.drop_topic(name, force=True)
            await wait_until_async(lambda: all(f"topic {name} was dropped" in caplog.text for name in names))
            await sender.send("kept-1", b"x")
            await wait_until_async(lambda: "kept-1" in handled)
            await wait_until_async(lambda: worker._life is not None and list(worker._life.routes) == ["kept-1"])
        assert "cannot be read" not in caplog.text
        assert worker._life.leases.pause_s > 1
        assert {ShardKeys(prefix, name).of("ready") for name in names}.isdisjoint(keys_left(client, prefix))
        declare(names[0])
        await sender.send(names[0], b"x")
        await wait_until_async(lambda: handled.count(names[0]) == 2)


async def test_a_topic_that_is_declared_again_is_served_soon(
    *, redis_url: str, prefix: str, sender: AsyncProducer, admin: AsyncAdmin, declare: Callable[..., Policy]
) -> None:
    """Also if the worker has met the registry without it, and has not forgotten it."""
    worker, handled = new_worker(redis_url, prefix), list[str]()
    worker.on("job-*")(lambda delivery: handled.append(delivery.id))
    async with managed(redis_url, prefix), working(worker):
        declare("job-1")
        await sender.send("job-1", b"x", id="former")
        await wait_until_async(lambda: handled == ["former"])
        await admin.drop_topic("job-1", force=True)
        life = worker._life
        assert life is not None
        await wait_until_async(lambda: life._windows.is_aside("job-1") or "job-1" not in life.routes)
        await admin.create_topic("job-1")
        await sender.send("job-1", b"x", id="new")
        await wait_until_async(lambda: handled == ["former", "new"])
