"""Long polls: who is served, when, and what hanging up, failures and a stop do to them."""

import asyncio
import resource
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from support import Server
from support.processes import Programs
from support.waiting import wait_until_async
from support.wire import AsyncWire, Reply, Wire

from .conftest import Stage


async def _poll(client: AsyncWire, topic: str, timeout_ms: int = 50_000, **more: object) -> tuple[Reply, float]:
    """Polls; the reply, and when it came by the clock of the machine, in ms."""
    reply = await client.post("longPollingMsg", topic=topic, longPollingTimeoutMillis=timeout_ms, **more)
    return reply, time.time() * 1000


async def _wait_for_polls(count: int, *wires: Wire) -> None:
    """Waits until so many polls wait at some gateways."""
    await wait_until_async(lambda: sum(wire.count_polls() for wire in wires) == count, 30)


@pytest.fixture
async def clients(stage: Stage) -> AsyncIterator[list[AsyncWire]]:
    """Forty clients, twenty of each gateway."""
    await _wait_for_polls(0, stage.first, stage.second)
    opened = [AsyncWire(wire.address) for wire in (stage.first, stage.second) for _ in range(20)]
    yield opened
    for client in opened:
        await client.hang_up()


async def test_each_message_goes_to_one_poller(clients: list[AsyncWire], wire: Wire, other: Wire, topic: str) -> None:
    """Forty polls by two gateways: each message is delivered once, never before its time, soon after it."""
    polls = [asyncio.create_task(_poll(client, topic)) for client in clients]
    await _wait_for_polls(40, wire, other)
    sent = await asyncio.to_thread(
        lambda: {
            (message := wire.post("sendMsg", topic=topic, msg=f"{n}", delayMillis=700 + 20 * n).message)[
                "msgId"
            ]: message
            for n in range(40)
        }
    )
    delivered: Counter[str] = Counter()
    for reply, at in await asyncio.gather(*polls):
        [message] = reply.messages
        delivered[message["msgId"]] += 1
        assert at >= message["triggerTime"]
    assert delivered == Counter(sent.keys())


async def test_first_come_first_served(clients: list[AsyncWire], wire: Wire, topic: str) -> None:
    """Pollers of a gateway are served in the order of their coming."""
    first, second = clients[0], clients[1]
    polls = []
    for count, client in enumerate((first, second), 1):
        polls.append(asyncio.create_task(_poll(client, topic, batch=5)))
        await _wait_for_polls(count, wire)
    await asyncio.to_thread(wire.post, "sendMsg", topic=topic, msg="a", delayMillis=0)
    reply, _ = await polls[0]
    assert [message["msg"] for message in reply.messages] == ["a"]
    await asyncio.to_thread(wire.post, "sendMsg", topic=topic, msg="b", delayMillis=0)
    reply, _ = await polls[1]
    assert [message["msg"] for message in reply.messages] == ["b"]


async def test_timeout_is_an_empty_list(clients: list[AsyncWire], topic: str) -> None:
    """At its timeout, and not before, a poll is answered with code 200 and nothing."""
    began = time.monotonic()
    reply, _ = await _poll(clients[0], topic, 1500)
    assert (reply.status, reply.content) == (200, {"code": 200, "delayMsgList": []})
    assert 1.5 <= time.monotonic() - began < 30


@pytest.mark.slow
async def test_batch_is_filled(clients: list[AsyncWire], wire: Wire, topic: str) -> None:
    """One who asks for many gets what is there, though another poll asks for one."""
    other = asyncio.create_task(_poll(clients[1], f"{topic}-other"))
    poll = asyncio.create_task(_poll(clients[0], topic, batch=100))
    await _wait_for_polls(2, wire)
    ids = {f"m{n}" for n in range(30)}
    for id in ids:
        await asyncio.to_thread(wire.post, "sendMsg", topic=topic, msg="x", delayMillis=1500, msgId=id)
    received: set[str] = set()
    while received != ids:
        reply, _ = await poll
        received |= {message["msgId"] for message in reply.messages}
        poll = asyncio.create_task(_poll(clients[0], topic, batch=100))
    assert not other.done()
    poll.cancel()
    other.cancel()


async def test_hanging_up_costs_nothing(clients: list[AsyncWire], wire: Wire, other: Wire, topic: str) -> None:
    """Messages for pollers that hung up go to others at once, as first deliveries."""
    for client in clients[:30]:
        await client.begin("longPollingMsg", topic=topic, longPollingTimeoutMillis=50_000, batch=3)
    await _wait_for_polls(30, wire, other)
    for client in clients[:30]:
        await client.hang_up()
    ids = {f"m{n}" for n in range(10)}
    for id in ids:
        await asyncio.to_thread(wire.post, "sendMsg", topic=topic, msg="x", delayMillis=0, msgId=id, maxRetry=0)
    received: dict[str, int] = {}
    while received.keys() != ids:
        for message in (await _poll(clients[39], topic, 3000, batch=10))[0].messages:
            received[message["msgId"]] = message["retry"]
    assert set(received.values()) == {1}


async def test_new_topics_wake_the_read(clients: list[AsyncWire], wire: Wire, topic: str) -> None:
    """Polls of new topics are served while those of others wait."""
    idle = [asyncio.create_task(_poll(client, f"{topic}-{n}")) for n, client in enumerate(clients[:15])]
    await _wait_for_polls(15, wire)
    for n in range(5):
        poll = asyncio.create_task(_poll(clients[15], f"{topic}-new-{n}"))
        await _wait_for_polls(16, wire)
        await asyncio.to_thread(wire.post, "sendMsg", topic=f"{topic}-new-{n}", msg="x", delayMillis=0)
        reply, _ = await poll
        assert len(reply.messages) == 1
    assert not any(poll.done() for poll in idle)
    for poll in idle:
        poll.cancel()


async def test_stop_ends_polls(stage: Stage, topic: str) -> None:
    """SIGTERM: polls end with an empty answer, the process with 0; a message that comes then is for others."""
    gateway = stage.programs.gateway()
    client = AsyncWire(gateway.listens_at)
    poll = asyncio.create_task(_poll(client, topic))
    await _wait_for_polls(1, Wire(gateway.listens_at))
    began = time.monotonic()
    code = await asyncio.to_thread(gateway.stop)
    reply, _ = await poll
    await client.hang_up()
    assert (code, reply.content) == (0, {"code": 200, "delayMsgList": []})
    assert time.monotonic() - began < 30


@pytest.mark.slow
async def test_redis_away(own_server: Callable[..., Server], tmp_path: Path) -> None:
    """Without Redis polls fail after about a second, sends and acks too; afterwards all goes on by itself."""
    server = own_server(appendonly="yes")
    programs = Programs(server.url, "away", tmp_path)
    try:
        programs.manager()
        address = programs.gateway().listens_at
        wire, poller = AsyncWire(address), AsyncWire(address)
        assert (await wire.post("sendMsg", topic="a", msg="x", delayMillis=0)).code == 200
        poll = asyncio.create_task(_poll(poller, "b", 20000))
        await _wait_for_polls(1, Wire(address))
        await asyncio.to_thread(server.kill)
        reply, _ = await poll
        assert (reply.status, reply.code) == (200, 500)
        for _ in range(3):
            began = time.monotonic()
            reply, _ = await _poll(wire, "b", 20000)
            assert reply.code == 500
            assert 0.9 < time.monotonic() - began < 15
        assert (await wire.post("sendMsg", topic="a", msg="x", delayMillis=0)).code == 500
        await asyncio.to_thread(server.start)

        async def is_back() -> bool:
            return (await wire.post("sendMsg", topic="b", msg="x", delayMillis=0)).code == 200

        await wait_until_async(is_back)
        reply, _ = await _poll(wire, "b", 10000)
        assert len(reply.messages) == 1
        await wire.hang_up()
        await poller.hang_up()
    finally:
        programs.close()


@pytest.mark.slow
async def test_ten_thousand_polls(stage: Stage, topic: str) -> None:
    """One gateway holds them all on ten topics: each message is answered to one of them, and a stop ends all others."""
    # Both this process and the gateway need a file for each connection.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    gateway = stage.programs.gateway()
    clients = [AsyncWire(gateway.listens_at) for _ in range(10_000)]
    sender = AsyncWire(gateway.listens_at)
    try:
        for n, client in enumerate(clients):
            await client.begin("longPollingMsg", topic=f"{topic}-{n % 10}", longPollingTimeoutMillis=200_000)
        answers = [asyncio.create_task(client.end()) for client in clients]
        sent = [
            (await sender.post("sendMsg", topic=f"{topic}-{n % 10}", msg="x", delayMillis=100)).message["msgId"]
            for n in range(50)
        ]

        def all_are_answered() -> bool:
            # A poll that is empty has ended after its 55 s: on a busy machine, before the last ones have begun.
            return sum(len(each.result().messages) for each in answers if each.done()) == len(sent)

        await wait_until_async(all_are_answered, 60, what="50 are answered")
        assert await asyncio.to_thread(gateway.stop) == 0
        received = [message["msgId"] for reply in await asyncio.gather(*answers) for message in reply.messages]
        assert sorted(received) == sorted(sent)
    finally:
        for client in (*clients, sender):
            await client.hang_up()


@pytest.mark.long
async def test_the_longest_polls(stage: Stage, topic: str) -> None:
    """They are answered before proxies give up, which nginx does after 60 s: an empty list, whatever was asked for."""
    clients = [AsyncWire(stage.first.address) for _ in range(2)]
    began = time.monotonic()
    polls = [_poll(client, topic, timeout_ms) for client, timeout_ms in zip(clients, (55_000, 2**62), strict=True)]
    for reply, _ in await asyncio.gather(*polls):
        assert reply.content == {"code": 200, "delayMsgList": []}
    assert 49 < time.monotonic() - began < 58
    for client in clients:
        await client.hang_up()
