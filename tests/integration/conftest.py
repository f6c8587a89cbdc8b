"""Fixtures of the integration tests: producers, consumers, workers and managers on the server of the run."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
import redis

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.client.connection import Connection
from lisa_common.model.keys import ShardKeys, topics_key
from lisa_common.model.policy import Policy
from lisa_consumer import AsyncConsumer, Consumer, ConsumerSettings
from lisa_manager import AsyncAdmin, ManagerSettings
from lisa_producer import AsyncProducer, Producer, ProducerSettings
from support.commands import Commands
from support.housekeeping import Housekeeper
from support.queue import Queue
from support.site import Site
from support.twins import InThread


@pytest.fixture
def declare(client: redis.Redis, prefix: str) -> Callable[..., Policy]:
    """Declares a topic with a policy: `declare("orders", visibility_ms=500)`."""

    def declare(topic: str = "orders", **fields: Any) -> Policy:
        policy = Policy.of(fields)
        client.hset(topics_key(prefix), topic, policy.dump())
        return policy

    return declare


@pytest.fixture
async def connection(redis_url: str) -> AsyncIterator[AsyncConnection]:
    """A connection of the test's own, to look at the server by."""
    async with AsyncConnection(redis_url, name="test") as opened:
        yield opened


@pytest.fixture
def housekeeper(connection: AsyncConnection, prefix: str) -> Housekeeper:
    """Does the manager's work by hand."""
    return Housekeeper(connection, prefix)


@pytest.fixture(params=["blocking", "asyncio"])
async def producers(request: pytest.FixtureRequest, redis_url: str, prefix: str) -> AsyncIterator[Callable[..., Any]]:
    """Makes producers of either kind, all awaitable: `producers(url, confirm=..., patience_s=1)`."""
    async with AsyncExitStack() as stack:

        def make(url: str | None = None, *, confirm: Any = None, codec: Any = None, **settings: Any) -> Any:
            given = ProducerSettings(redis_url=url or redis_url, prefix=prefix, **settings)
            if request.param == "asyncio":
                producer: Any = AsyncProducer(settings=given, confirm=confirm, codec=codec)
            else:
                producer = InThread(Producer(settings=given, confirm=confirm, codec=codec))
            stack.push_async_callback(producer.close)
            return producer

        yield make


@pytest.fixture
def producer(producers: Callable[..., Any]) -> Any:
    """A producer of either kind."""
    return producers()


@pytest.fixture(params=["blocking", "asyncio"])
async def consumers(request: pytest.FixtureRequest, redis_url: str, prefix: str) -> AsyncIterator[Callable[..., Any]]:
    """Makes consumers of either kind, all awaitable: `consumers("orders", "billing", url=..., patience_s=1)`."""
    async with AsyncExitStack() as stack:

        def make(
            topics: Any = "orders",
            group: str = "billing",
            *,
            url: str | None = None,
            name: str | None = None,
            **more: Any,
        ) -> Any:
            given = ConsumerSettings(redis_url=url or redis_url, prefix=prefix, **more)
            if request.param == "asyncio":
                consumer: Any = AsyncConsumer(topics, group, name=name, settings=given)
            else:
                consumer = InThread(Consumer(topics, group, name=name, settings=given))
            stack.push_async_callback(consumer.close)
            return consumer

        yield make


@pytest.fixture
async def sender(redis_url: str, prefix: str) -> AsyncIterator[AsyncProducer]:
    """A producer for tests of something else."""
    async with AsyncProducer(settings=ProducerSettings(redis_url=redis_url, prefix=prefix)) as opened:
        yield opened


@pytest.fixture
def commands(redis_url: str, prefix: str) -> Commands:
    """Runs command lines as operators type them."""
    return Commands(redis_url, prefix)


@pytest.fixture
def orders(redis_url: str, prefix: str, client: redis.Redis, declare: Callable[..., Policy]) -> Iterator[Queue]:
    """The topic "orders", declared, with every script as a verb; its clock begins with the server's."""
    declare("orders")
    seconds, microseconds = client.execute_command("TIME")
    now_ms = int(seconds) * 1000 + int(microseconds) // 1000
    with Connection(redis_url, name="test") as connection:
        yield Queue(connection, ShardKeys(prefix, "orders"), now_ms=now_ms)


@pytest.fixture
async def admin(redis_url: str, prefix: str) -> AsyncIterator[AsyncAdmin]:
    """An operator."""
    async with AsyncAdmin(settings=ManagerSettings(redis_url=redis_url, prefix=prefix)) as opened:
        yield opened


@pytest.fixture
async def reading(redis_url: str, prefix: str) -> AsyncIterator[Callable[..., AsyncConsumer]]:
    """Makes consumers: `reading("orders")`."""
    opened: list[AsyncConsumer] = []

    def make(*topics: str, group: str = "g") -> AsyncConsumer:
        settings = ConsumerSettings(redis_url=redis_url, prefix=prefix)
        opened.append(AsyncConsumer(topics, group, settings=settings))
        return opened[-1]

    yield make
    for consumer in opened:
        await consumer.close()


@pytest.fixture
def site(redis_url: str, prefix: str, client: redis.Redis, admin: AsyncAdmin) -> Site:
    """The server of the run."""
    return Site(redis_url, prefix, client, admin)
