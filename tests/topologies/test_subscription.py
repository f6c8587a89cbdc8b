"""A manager's subscription after a fail-over behind one plain address."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import pytest

from lisa_common.client import async_subscription
from lisa_common.client.async_connection import AsyncConnection
from lisa_common.errors import OutcomeUnknown
from lisa_common.model.keys import wake_channel
from lisa_consumer import AsyncConsumer
from lisa_producer import AsyncProducer
from support import Server, wait_until_async
from support.proxy import Proxy
from support.running import managed
from support.server import count_calls

CHANNEL = wake_channel("lisa")


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_subscription, "_CALL_S", 0.5)


async def test_it_leaves_a_server_that_nobody_writes_to(own_server: Callable[..., Server]) -> None:
    """The address leads to another server by now; the link to the former one is whole."""
    former, other = own_server(), own_server()
    async with (
        Proxy(former.port) as proxy,
        AsyncConnection(proxy.url) as connection,
        aclosing(connection.listen(CHANNEL)) as messages,
    ):
        assert await anext(messages) is None
        proxy.lead_to(other.port)
        with pytest.raises(OutcomeUnknown, match="not at the server that is written to"):
            await _exhaust(messages)


async def _exhaust(messages: AsyncGenerator[bytes | None]) -> None:
    async with asyncio.timeout(20):
        async for _ in messages:
            pass


async def test_without_the_right_to_publish_a_ping_tells(own_server: Callable[..., Server]) -> None:
    """Of a link that died in silence."""
    server = own_server()
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "shop", "on", ">pw", "~*", "&*", "+@all", "-publish")
    async with (
        Proxy(server.port) as proxy,
        AsyncConnection(proxy.url.replace("://", "://shop:pw@")) as connection,
        aclosing(connection.listen(CHANNEL)) as messages,
    ):
        assert await anext(messages) is None
        proxy.strand()
        with pytest.raises(OutcomeUnknown, match="does not answer PING"):
            await _exhaust(messages)


async def test_it_stays_where_it_hears_itself(own_server: Callable[..., Server]) -> None:
    """Listeners get nothing of that."""
    server = own_server()
    heard: list[bytes | None] = []
    async with AsyncConnection(server.url) as connection:

        async def listen() -> None:
            async with aclosing(connection.listen(CHANNEL)) as messages:
                heard.extend([message async for message in messages if message is not None])

        listening = asyncio.create_task(listen())
        with server.client() as client:
            await wait_until_async(lambda: listening.done() or count_calls(client, "publish") >= 4, 30)
        assert not listening.done()
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
    assert heard == []


async def test_messages_are_promoted_in_time_after_a_fail_over(own_server: Callable[..., Server]) -> None:
    """A manager that polls seldom is woken by sends to the new master."""
    former, other = own_server(), own_server()
    async with (
        Proxy(former.port) as proxy,
        managed(proxy.url, "lisa", poll_s=60, quiet_poll_s=60, discover_s=0.2),
        AsyncProducer(proxy.url) as producer,
        AsyncConsumer("mails", "billing", url=proxy.url) as consumer,
    ):
        await consumer.read()
        with former.client() as client, other.client() as new:
            await wait_until_async(lambda: client.pubsub_numsub(CHANNEL)[0][1] == 1)
            proxy.lead_to(other.port)
            client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            await wait_until_async(lambda: new.pubsub_numsub(CHANNEL)[0][1] == 1, 30)
        await producer.send("mails", b"x", id="a", delay=0.2)
        [delivery] = await consumer.read(wait=30)
        assert delivery.id == "a"
