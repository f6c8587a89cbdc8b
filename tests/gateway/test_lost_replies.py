"""Replies to the calls of a gateway that are lost."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx
import pytest

from lisa_common.errors import AccessDenied, LisaError
from lisa_common.protocol.scripts import load
from lisa_consumer import AsyncLender, ConsumerSettings
from lisa_gateway import GatewaySettings, app, lifespan
from lisa_gateway.access.quotas import Quota
from lisa_gateway.gateway import Gateway
from lisa_gateway.polls import Poller
from lisa_producer import AsyncProducer, Message, ProducerSettings
from support import Server
from support.proxy import Proxy
from support.waiting import wait_until_async


@pytest.mark.parametrize("given", [{"msgId": "order-7"}, {}], ids=["named", "without an id"])
@pytest.mark.parametrize("ack", ["true", "false"])
async def test_a_message_that_ends_before_the_reply_is_sent_once(
    own_server: Callable[..., Server], prefix: str, given: dict[str, str], ack: str
) -> None:
    """The reply to its send is lost, and it was acked, or has died, before the send is repeated."""
    async with Proxy(own_server().port) as proxy:
        application = app(GatewaySettings.load(redis_url=proxy.url, prefix=prefix))
        gateway: Gateway = application.state.gateway
        transport, handled = httpx.ASGITransport(application), list[str]()
        url = "http://localhost/camellia/delayQueue"
        async with lifespan(application), httpx.AsyncClient(transport=transport, base_url=url) as http:

            async def handle() -> None:
                for message in (await http.post("/pullMsg", params={"topic": "orders"})).json()["delayMsgList"]:
                    handled.append(message["msg"])
                    ended = {"topic": "orders", "msgId": message["msgId"], "ack": ack}
                    await http.post("/ackMsg", params=ended)

            await handle()
            await gateway.producer.send("mails", b"so that the script is loaded")
            proxy.lose_reply_to(b"a body to find")
            proxy.at_loss = handle
            sent = {"topic": "orders", "msg": "a body to find", "delayMillis": "0", "maxRetry": "0"} | given
            answer = (await http.post("/sendMsg", params=sent)).json()
            await handle()
        assert (answer["code"], proxy.lost, handled) == (200, 1, ["a body to find"])


@asynccontextmanager
async def _camellia(url: str, prefix: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a gateway without programs beside it."""
    application = app(GatewaySettings.load(redis_url=url, prefix=prefix, patience_s=0.2))
    base_url = "http://localhost/camellia/delayQueue"
    transport = httpx.ASGITransport(application)
    async with lifespan(application), httpx.AsyncClient(transport=transport, base_url=base_url) as http:
        yield http


async def test_an_ack_that_may_have_arrived_is_unknown_though_its_repeat_did_nothing(
    own_server: Callable[..., Server], prefix: str
) -> None:
    """The reply to an ack is lost, and nobody answers its repeat."""
    server = own_server()
    async with Proxy(server.port) as proxy, _camellia(proxy.url, prefix) as http:
        for id in ("order-6", "order-7"):
            await http.post("/sendMsg", params={"topic": "orders", "msg": "a", "delayMillis": "0", "msgId": id})
        await http.post("/pullMsg", params={"topic": "orders", "batch": "2"})
        # So that the script is loaded.
        await http.post("/ackMsg", params={"topic": "orders", "msgId": "order-6"})

        async def go_away() -> None:
            proxy.lead_to(1)

        proxy.at_loss = go_away
        proxy.lose_reply_to(b'"status":4')
        answer = (await http.post("/ackMsg", params={"topic": "orders", "msgId": "order-7"})).json()
        proxy.lead_to(server.port)
        known = (await http.post("/getMsg", params={"topic": "orders", "msgId": "order-7"})).json()
        assert (answer["code"], known["delayMsg"]["status"]) == (500, 4)
        assert "may have been carried out" in answer["msg"]


def _go_away_at(proxy: Proxy, marker: bytes, *, passes: int = 0) -> None:
    """Swallows a request that holds the marker, once so many have passed, and answers none after it."""
    left = passes

    async def cut(data: bytes) -> bytes | None:
        nonlocal left
        left -= marker in data
        if left >= 0 or marker not in data:
            return data
        proxy.change_request = None
        proxy.lead_to(1)
        proxy.reset()
        return None

    proxy.change_request = cut


async def test_a_dead_letter_that_was_purged_for_a_send_is_told(own_server: Callable[..., Server], prefix: str) -> None:
    """A send purges the dead letter of its id. Then the server goes away."""
    server = own_server()
    async with Proxy(server.port) as proxy, _camellia(proxy.url, prefix) as http:
        sent = {"topic": "orders", "msg": "a", "delayMillis": "0", "msgId": "order-7", "maxRetry": "0"}
        await http.post("/sendMsg", params=sent)
        await http.post("/pullMsg", params=sent)
        await http.post("/ackMsg", params=sent | {"ack": "false"})
        _go_away_at(proxy, b"a second one", passes=1)
        answer = (await http.post("/sendMsg", params=sent | {"msg": "a second one"})).json()
        assert (answer["code"], "may have been carried out" in answer["msg"]) == (500, True)


async def test_a_message_that_was_moved_is_told_though_it_cannot_be_shown(
    own_server: Callable[..., Server], prefix: str
) -> None:
    """The server goes away between the two steps."""
    server = own_server()
    async with Proxy(server.port) as proxy, _camellia(proxy.url, prefix) as http:
        sent = {"topic": "orders", "msg": "a", "delayMillis": "60000", "msgId": "order-7"}
        await http.post("/sendMsg", params=sent)
        find = load("find").sha.encode()
        _go_away_at(proxy, find)
        assert (await http.post("/rescheduleMsg", params=sent)).json() == {"code": 200, "msg": "success"}


@pytest.mark.parametrize("call", ["pullMsg", "longPollingMsg"])
async def test_what_a_pull_took_before_the_server_went_away_comes_to_the_next(
    own_server: Callable[..., Server], prefix: str, call: str
) -> None:
    """The server goes between the read of a message and its loan: no attempt is spent, and no lease runs out."""
    server = own_server()
    async with Proxy(server.port) as proxy, _camellia(proxy.url, prefix) as http:
        await http.post("/sendMsg", params={"topic": "orders", "msg": "a", "delayMillis": "0", "maxRetry": "0"})
        _go_away_at(proxy, b":loan:")
        assert (await http.post(f"/{call}", params={"topic": "orders"})).json()["code"] == 500
        proxy.lead_to(server.port)
        await http.post("/getMsg", params={"topic": "orders", "msgId": "until the server is found again"})
        [message] = (await http.post("/pullMsg", params={"topic": "orders"})).json()["delayMsgList"]
        assert message["retry"] == 1


async def test_pollers_of_one_read_that_fails_keep_nothing(own_server: Callable[..., Server], prefix: str) -> None:
    """Two share a read. The message of the one is lent, that of the other is not: both come to the next reader."""
    server = own_server()
    async with Proxy(server.port) as proxy:
        application = app(GatewaySettings.load(redis_url=proxy.url, prefix=prefix, patience_s=0.2))
        gateway: Gateway = application.state.gateway
        polls = gateway.desk().polls
        async with (
            lifespan(application),
            AsyncProducer(url=server.url, settings=ProducerSettings(prefix=prefix)) as producer,
        ):
            await gateway.topics.declare("orders", Quota())
            # It makes the read one of ten messages.
            large = Poller("orders", 10, 60.0, by_id=True)
            polling = [asyncio.create_task(polls.poll(large, 20.0))]
            await wait_until_async(lambda: polls.count == 1)
            large.leave()
            small = [Poller("orders", 1, 60.0, by_id=by_id) for by_id in (False, True)]
            polling += [asyncio.create_task(polls.poll(poller, 20.0)) for poller in small]
            await wait_until_async(lambda: polls.count == 2)
            _go_away_at(proxy, b":loan:")
            await producer.send_many("orders", [Message(body=b"a"), Message(body=b"b")])
            left, *failed = await asyncio.gather(*polling, return_exceptions=True)
            assert (left, [isinstance(each, LisaError) for each in failed]) == ([], [True, True])
            proxy.lead_to(server.port)
            await gateway.lender.server_time()
            came: list[int] = []
            async with asyncio.timeout(20):
                # They may be given back one after the other.
                while len(came) < 2:
                    came += [each.attempt for each in await polls.pull("orders", 2, 60.0, by_id=True)]
            assert came == [1, 1]


@pytest.mark.parametrize("waits", [False, True])
async def test_what_is_not_lent_is_given_back_once(
    own_server: Callable[..., Server], prefix: str, *, waits: bool
) -> None:
    """The server refuses the loan alone. The message is ready again, and no attempt is spent."""
    server = own_server()
    async with Proxy(server.port) as proxy:
        application = app(GatewaySettings.load(redis_url=proxy.url, prefix=prefix))
        gateway: Gateway = application.state.gateway
        polls, release, given_back = gateway.desk().polls, load("release"), 0

        async def count(data: bytes) -> bytes:
            nonlocal given_back
            given_back += data.count(release.sha.encode())
            return data

        with server.client() as client:
            async with lifespan(application):
                await gateway.topics.declare("orders", Quota())
                client.script_load(release.text)
                client.execute_command("ACL", "SETUSER", "default", "-set")
                proxy.change_request = count
                poller = Poller("orders", 1, 60.0, by_id=True)
                if not waits:
                    await gateway.producer.send("orders", b"a")
                polling = asyncio.create_task(polls.poll(poller, 20.0))
                if waits:
                    await wait_until_async(lambda: polls.count == 1)
                    await gateway.producer.send("orders", b"a")
                with pytest.raises(AccessDenied):
                    await polling
            assert given_back == 1
        settings = ConsumerSettings(redis_url=server.url, prefix=prefix)
        async with AsyncLender(gateway.lender.group, settings=settings) as lender:
            [delivery] = await lender.read(1, wait=5, topics="orders")
            assert delivery.attempt == 1


async def test_a_send_declares_its_topic_though_a_reply_is_lost(own_server: Callable[..., Server], prefix: str) -> None:
    """Nobody asked for the topic by itself, so it does not matter which try has made it."""
    async with Proxy(own_server().port) as proxy, _camellia(proxy.url, prefix) as http:
        sent = {"topic": "first", "msg": "a", "delayMillis": "60000"}
        await http.post("/sendMsg", params=sent)  # the server has the script
        proxy.lose_reply_to(load("declare").sha.encode())
        answer = (await http.post("/sendMsg", params=sent | {"topic": "orders"})).json()
        assert (answer["code"], proxy.lost) == (200, 1)


async def test_a_topic_that_was_declared_is_told_though_it_cannot_be_shown(
    own_server: Callable[..., Server], prefix: str
) -> None:
    """The server goes away between the two steps."""
    server = own_server()
    async with Proxy(server.port) as proxy, _camellia(proxy.url, prefix) as http:

        async def go_once_declared(data: bytes) -> bytes | None:
            if load("declare").sha.encode() in data:
                _go_away_at(proxy, b"")
            return data

        await http.put("http://localhost/v1/topics/first", json={})
        proxy.change_request = go_once_declared
        assert (await http.put("http://localhost/v1/topics/orders", json={})).status_code == 504
