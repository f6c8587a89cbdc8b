"""Large messages over slow links: they take their time, and cost no attempt."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from lisa_common.client.connection import Connection
from lisa_common.errors import OutcomeUnknown
from lisa_common.model.keys import ShardKeys, topics_key
from lisa_common.model.policy import Policy
from lisa_common.protocol.call import Call, Flow
from lisa_consumer import AckOutcome, AsyncConsumer, ConsumerSettings, Delivery, Worker
from lisa_consumer.delivery.core import Core
from lisa_producer import AsyncProducer, Message, ProducerSettings, State
from support import Server, wait_until_async
from support.holding import read_all
from support.proxy import Proxy
from support.running import Handled, managed, new_worker, working

TIMEOUT_S, VISIBILITY_MS = 0.4, 1_500


@pytest.fixture
def server(own_server: Callable[..., Server], prefix: str) -> Server:
    """A server whose topic of orders has short leases, and spends messages on the first that is lost."""
    server = own_server()
    policy = Policy.of({"visibility_ms": VISIBILITY_MS, "max_retries": 0})
    with server.client() as client:
        client.hset(topics_key(prefix), "orders", policy.dump())
    return server


@pytest.fixture
async def slow(server: Server) -> AsyncIterator[Proxy]:
    """A link to it that lets 4 MB pass in a second."""
    async with Proxy(server.port) as proxy:
        proxy.bytes_per_s = 4e6
        yield proxy


@pytest.fixture
async def sender(server: Server, prefix: str) -> AsyncIterator[AsyncProducer]:
    """A producer with a link of its own."""
    async with AsyncProducer(settings=ProducerSettings(redis_url=server.url, prefix=prefix)) as opened:
        yield opened


def _counting(worker: Worker) -> Handled:
    handled = Handled()

    @worker.on("orders")
    async def handle(delivery: Delivery) -> None:
        handled.append(delivery)

    return handled


async def _send(sender: AsyncProducer, count: int, size: int, *, first: int = 0) -> list[str]:
    ids = [f"m{number:03}" for number in range(first, first + count)]
    for id in ids:
        await sender.send("orders", bytes(size), id=id)
    return ids


@pytest.mark.slow
@pytest.mark.parametrize(("count", "size"), [(40, 100_000), (12, 1_048_576)])
async def test_a_worker_handles_each_once(
    *, server: Server, prefix: str, slow: Proxy, sender: AsyncProducer, count: int, size: int
) -> None:
    """However long they take together: no attempt is spent beyond the first, and nothing dies (promises 2 and 3)."""
    ids = await _send(sender, count, size)
    worker = new_worker(slow.url, prefix, timeout_s=TIMEOUT_S)
    handled = _counting(worker)
    async with managed(server.url, prefix), working(worker):
        await wait_until_async(lambda: len(handled) >= count, 60)
    assert sorted(handled.ids) == ids
    assert {delivery.attempt for delivery in handled} == {1}
    for id in ids:
        found = await sender.find("orders", id)
        assert found is not None
        assert found.state is State.FINISHED


@pytest.mark.slow
async def test_a_read_lasts_longer_than_its_leases(
    *, server: Server, prefix: str, slow: Proxy, sender: AsyncProducer, consumers: Callable[..., Any]
) -> None:
    """They are renewed while the messages are fetched, so that all of them are acked."""
    ids = await _send(sender, 20, 500_000)
    async with managed(server.url, prefix):
        consumer = consumers(url=slow.url, timeout_s=TIMEOUT_S, patience_s=0)
        deliveries = await consumer.read()
        assert [delivery.id for delivery in deliveries] == ids
        assert await consumer.ack(*deliveries) == [AckOutcome.ACKED] * len(ids)


def _drive(connection: Connection, flow: Flow[list[Delivery]]) -> tuple[list[Delivery], list[int]]:
    """The result of a flow, and how many bytes of records each of its round trips has brought."""
    brought: list[int] = []
    step = next(flow)
    try:
        while True:
            results = connection.execute([step] if isinstance(step, Call) else step)
            lists = [result for result in results if isinstance(result, list)]
            brought.append(sum(len(item) for items in lists for item in items if isinstance(item, bytes)))
            step = flow.send(results[0] if isinstance(step, Call) else results)
    except StopIteration as stop:
        return stop.value, brought


@pytest.mark.parametrize("sizes", [[1_000_000] * 24, [100] * 4 + [1_000_000] + [100] * 19])
async def test_no_round_trip_brings_more_than_a_few_mib(
    *, server: Server, prefix: str, sender: AsyncProducer, sizes: list[int]
) -> None:
    """From the first read of a topic on; the next reads bring as many messages as are fetched at once."""
    for size in sizes * 2:
        await sender.send("orders", bytes(size))
    core = Core(prefix, "billing")
    with Connection(server.url) as connection:
        for least, most in ((len(sizes), len(sizes)), (1, 4)):
            deliveries, brought = _drive(connection, read_all(core, ["orders"], limit=len(sizes)))
            assert least <= len(deliveries) <= most
            assert max(brought) < 4_200_000


async def test_small_messages_are_fetched_at_once(*, server: Server, prefix: str, sender: AsyncProducer) -> None:
    """Of a topic that is known, by two round trips: a read and a plain fetch."""
    core = Core(prefix, "billing")
    with Connection(server.url) as connection:
        for _ in range(2):
            await sender.send_many("orders", [Message(body=b"x") for _ in range(500)])
            deliveries, brought = _drive(connection, read_all(core, ["orders"], limit=500))
            assert len(deliveries) == 500
    assert len(brought) == 2


async def test_what_cannot_be_fetched_is_given_back_at_once(
    *, prefix: str, server: Server, sender: AsyncProducer, consumers: Callable[..., Any]
) -> None:
    """When the link breaks over a fetch, another consumer has the messages at once, and no attempt is spent."""
    await _send(sender, 3, 100)
    async with Proxy(server.port) as proxy:
        unlucky, other = consumers(url=proxy.url, patience_s=0), consumers(url=server.url)
        assert await unlucky.read() != []
        more = await _send(sender, 3, 100, first=3)
        proxy.lose_reply_to(b"HMGET\r\n$" + str(len(ShardKeys(prefix, "orders").of("messages"))).encode())
        with pytest.raises(OutcomeUnknown):
            await unlucky.read()
        given_back = await other.read()
    assert [(delivery.id, delivery.attempt) for delivery in given_back] == [(id, 1) for id in more]


async def test_a_read_that_is_cancelled_is_given_back(
    *, prefix: str, server: Server, slow: Proxy, sender: AsyncProducer
) -> None:
    """By the next read: no attempt is spent on what nobody was given."""
    ids = await _send(sender, 5, 1_000_000)
    settings = ConsumerSettings(redis_url=slow.url, prefix=prefix)
    async with AsyncConsumer("orders", "billing", settings=settings) as consumer:
        with server.client() as client:
            reading = asyncio.create_task(consumer.read())
            await wait_until_async(lambda: "cmdstat_hget" in client.info("commandstats"))
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
        slow.bytes_per_s = 0
        deliveries = await consumer.read()
    assert [(delivery.id, delivery.attempt) for delivery in deliveries] == [(id, 1) for id in ids]


@pytest.fixture
async def narrow(server: Server) -> AsyncIterator[Proxy]:
    """A link to it that lets 2 MB of requests pass in a second."""

    async def take_time(data: bytes) -> bytes:
        await asyncio.sleep(len(data) / 2e6)
        return data

    async with Proxy(server.port) as proxy:
        proxy.change_request = take_time
        yield proxy


@pytest.mark.slow
async def test_large_messages_that_follow_are_sent(server: Server, prefix: str, narrow: Proxy) -> None:
    """However many handlers end together: each request has as many as the link lets pass in time."""
    worker = new_worker(narrow.url, prefix, timeout_s=2)
    gate = asyncio.Event()
    begun, followed = Handled(), Handled()

    @worker.on("reports", concurrency=24)
    async def follow(delivery: Delivery) -> None:
        if len(delivery.body) > 1:
            followed.append(delivery)
            return
        begun.append(delivery)
        await gate.wait()
        delivery.then(bytes(500_000))

    async with (
        AsyncProducer(settings=ProducerSettings(redis_url=server.url, prefix=prefix)) as sender,
        managed(server.url, prefix),
        working(worker),
    ):
        await sender.send_many("reports", [Message(body=b"x") for _ in range(24)])
        await wait_until_async(lambda: len(begun) == 24)
        gate.set()
        await wait_until_async(lambda: len(followed) >= 24, 60)
    assert sorted(begun.ids) == sorted(followed.ids)


async def test_no_round_trip_sends_more_than_a_few_mib(*, server: Server, prefix: str, sender: AsyncProducer) -> None:
    """Of the messages that follow; outcomes have the order of the deliveries, and a second ack changes nothing."""
    await _send(sender, 12, 1)
    core = Core(prefix, "billing")
    with Connection(server.url) as connection:
        deliveries, _ = _drive(connection, read_all(core, ["orders"], limit=12))
        for delivery in deliveries[1::2]:
            delivery.then(bytes(1_000_000))
        connection.run(core.ack(deliveries[:2]))
        flow, sent, outcomes = core.ack(deliveries), list[int](), None
        step: Any = next(flow)
        while outcomes is None:
            sent.append(sum(len(arg) for call in step for arg in call.args if isinstance(arg, bytes)))
            try:
                step = flow.send(connection.execute(step))
            except StopIteration as stop:
                outcomes = stop.value
        followed, _ = _drive(connection, read_all(core, ["orders"], limit=12))
    assert outcomes == [AckOutcome.STALE] * 2 + [AckOutcome.ACKED] * 10
    assert len(followed) == 6
    assert 1_000_000 < max(sent) < 2_100_000
