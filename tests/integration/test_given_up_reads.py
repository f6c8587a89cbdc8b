"""Reads that are given up, or whose replies are lost: what they have taken comes again, and spends no attempt."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import redis

from lisa_common.client import exchanges
from lisa_common.errors import Refused
from lisa_common.model.keys import ShardKeys
from lisa_consumer import AsyncConsumer, AsyncLender, Consumer, ConsumerSettings, Delivery
from lisa_producer import Producer
from support import Server, wait_until, wait_until_async
from support.proxy import Proxy
from support.refusing import refusing

Reader = Callable[[ConsumerSettings], AsyncConsumer]

KEYS = ShardKeys("lisa", "mails")


class Interrupt(BaseException):
    """What a signal handler raises."""


def _count_held(client: redis.Redis) -> int:
    pending: Any = client.xpending(KEYS.of("ready"), "billing")
    return int(pending["pending"])


def _ids(deliveries: list[Delivery]) -> list[tuple[str, int]]:
    return [(delivery.id, delivery.attempt) for delivery in deliveries]


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda settings: AsyncConsumer("mails", "billing", settings=settings), id="consumer"),
        pytest.param(lambda settings: AsyncConsumer("mails", "billing", body=str, settings=settings), id="typed"),
        pytest.param(lambda settings: AsyncLender("billing", settings=settings), id="lender"),
    ],
)
@pytest.mark.parametrize("is_first", [True, False], ids=["first", "later"])
async def test_a_cancelled_read(own_server: Callable[..., Server], make: Reader, *, is_first: bool) -> None:
    """Its messages are ready again once it is cancelled, though their reply was on its way."""
    server = own_server()
    with Producer(server.url) as producer, server.client() as client:
        async with Proxy(server.port) as proxy, make(ConsumerSettings(redis_url=proxy.url)) as consumer:
            await consumer.read(topics="mails")
            if not is_first:
                producer.send("mails", '"x"', id="before")
                assert _ids(await consumer.read(topics="mails", wait=30)) == [("before", 1)]
            held = _count_held(client)
            reading = asyncio.create_task(consumer.read(topics="mails", wait=10))
            await _cancel_at_reply(reading, proxy, lambda: _count_held(client) > held, producer)
            assert _count_held(client) == held
            assert _ids(await consumer.read(topics="mails", wait=30)) == [("a", 1)]


async def _cancel_at_reply(
    reading: "asyncio.Task[Any]", proxy: Proxy, is_taken: Callable[[], bool], producer: Producer
) -> None:
    """Sends a message, and cancels the read that takes it while the reply is on its way."""
    await wait_until_async(lambda: proxy.is_waiting)
    gate = proxy.hold = asyncio.Event()
    await asyncio.to_thread(producer.send, "mails", '"x"', id="a")
    await wait_until_async(is_taken)
    proxy.hold = None
    reading.cancel()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await reading


async def test_a_former_life_keeps_its_deliveries(own_server: Callable[..., Server]) -> None:
    """A consumer of a chosen name gives back what its own read has taken, and not what a former one had begun."""
    server = own_server()
    with Producer(server.url) as producer, server.client() as client:
        with Consumer("mails", "billing", url=server.url, name="c1") as former:
            former.read()
            producer.send("mails", b"x", id="begun")
            assert _ids(former.read(wait=30)) == [("begun", 1)]
        async with (
            Proxy(server.port) as proxy,
            AsyncConsumer("mails", "billing", url=proxy.url, name="c1") as consumer,
        ):
            reading = asyncio.create_task(consumer.read(wait=10))
            await _cancel_at_reply(reading, proxy, lambda: _count_held(client) == 2, producer)
            assert _ids(await consumer.read(wait=30)) == [("a", 1)]
        [begun] = client.xpending_range(KEYS.of("ready"), "billing", "-", "+", 1)
        assert begun["times_delivered"] == 1


async def test_a_lost_reply(own_server: Callable[..., Server]) -> None:
    """The read is repeated by itself, and brings what the lost reply held."""
    server = own_server()
    async with Proxy(server.port) as proxy:
        with Producer(server.url) as producer, Consumer("mails", "billing", url=proxy.url) as consumer:
            await asyncio.to_thread(consumer.read)
            producer.send("mails", b"x", id="a")
            proxy.lose_reply_to(b"XREADGROUP")
            assert _ids(await asyncio.to_thread(consumer.read)) == [("a", 1)]
            await asyncio.to_thread(consumer.close)  # its calls go through this event loop
        assert proxy.lost == 1


async def test_what_a_server_that_lost_a_read_gives_again_is_not_given_back(own_server: Callable[..., Server]) -> None:
    """The read took a message, and could neither fetch nor release it. The server has lost that, and gives it again."""
    server = own_server()
    with Producer(server.url) as producer, server.client() as client:
        async with (
            refusing(server.port, word=lambda _: "LOADING Redis is loading the dataset in memory") as proxy,
            AsyncConsumer("mails", "billing", settings=ConsumerSettings(redis_url=proxy.url, patience_s=0)) as consumer,
        ):
            await consumer.read()
            producer.send("mails", b"x", id="before")
            [before] = await consumer.read(wait=30)
            producer.send("mails", b"x", id="a")
            proxy.refused = {"HMGET", "EVALSHA"}
            with pytest.raises(Refused):
                await consumer.read()
            client.xgroup_setid(KEYS.of("ready"), "billing", before.entry.entry)
            client.xack(KEYS.of("ready"), "billing", *(row["message_id"] for row in _held_after(client, before)))
            proxy.refused = {"EVALSHA"}
            [again] = await consumer.read()
            proxy.refused = ()
            assert (again.id, await consumer.read()) == ("a", [])
            assert await consumer.ack(again, before) == ["acked", "acked"]


def _held_after(client: redis.Redis, delivery: Delivery) -> list[Any]:
    held: Any = client.xpending_range(KEYS.of("ready"), "billing", f"({delivery.entry.entry}", "+", 10)
    return list(held)


async def test_restarts_of_the_server(own_server: Callable[..., Server]) -> None:
    """A loop of reads goes on, however often the server restarts while a read waits there."""
    server = own_server(appendonly="yes", appendfsync="always")
    with Producer(server.url) as producer:
        async with AsyncConsumer("mails", "billing", url=server.url) as consumer:
            await consumer.read()
            with server.client() as client:
                for id in ("a", "b"):
                    reading = asyncio.create_task(consumer.read(wait=20))
                    await wait_until_async(lambda: client.info("clients")["blocked_clients"])
                    await asyncio.to_thread(server.restart)
                    await asyncio.to_thread(producer.send, "mails", b"x", id=id)
                    assert _ids(await reading) == [(id, 1)]


@pytest.mark.parametrize("ends", [True, False], ids=["at the end", "at the next read"])
def test_an_interrupted_read(own_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch, *, ends: bool) -> None:
    """Ctrl-C in a blocking read: what it has taken goes back at the next read, or as the consumer closes."""
    server = own_server()

    def interrupted(*_: Any) -> None:
        monkeypatch.undo()
        wait_until(lambda: _count_held(client))
        raise Interrupt

    with server.client() as client, Producer(server.url) as producer:
        consumer, other = (Consumer("mails", "billing", url=server.url) for _ in range(2))
        with other, consumer:
            for each in (consumer, other):
                each.read()
            producer.send("mails", b"x", id="a")
            # Only reads of connections by Lisa meet this; the class has no public name.
            monkeypatch.setattr(exchanges._Quick, "read_replies", interrupted)
            with pytest.raises(Interrupt):
                consumer.read(wait=5)
            if ends:
                consumer.close()
            assert _ids((other if ends else consumer).read(wait=30)) == [("a", 1)]
