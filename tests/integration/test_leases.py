"""How a worker keeps the leases of the deliveries that it holds."""

import asyncio
import logging
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import redis

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.client.async_tasks import cancel_all
from lisa_common.client.connection import Connection
from lisa_common.errors import ServerError
from lisa_common.model.keys import ShardKeys, topics_key
from lisa_common.model.policy import Policy
from lisa_common.protocol.call import Call
from lisa_common.protocol.marking import StartMark
from lisa_common.protocol.registry import REFRESH_S
from lisa_consumer import AckOutcome, Delivery, NackOutcome
from lisa_consumer.delivery.core import MAX_BATCH, Core
from lisa_consumer.worker.held import HeldDelivery, State
from lisa_consumer.worker.leases import Leases
from lisa_producer import AsyncProducer, Message, ProducerSettings
from support import Server, wait_until_async
from support.holding import hold, read_all
from support.proxy import Proxy
from support.running import hang, managed, new_worker, working

VISIBILITY_MS = 6_000


class _Idle(list[int]):
    """How long the one delivery of orders had not been renewed, in ms, whenever it was looked at."""

    def __init__(self, client: Any, prefix: str) -> None:
        super().__init__([0])
        self._client = client
        self._ready = ShardKeys(prefix, "orders").of("ready")

    def was_renewed(self) -> bool:
        """Looks; says whether it has been renewed since the last look."""
        [pending] = self._client.xpending_range(self._ready, "billing", "-", "+", 1)
        self.append(pending["time_since_delivered"])
        return self[-1] < self[-2]


@pytest.mark.slow
async def test_a_link_that_died_in_silence_costs_no_lease(own_server: Callable[..., Server], prefix: str) -> None:
    """What goes out over it is not waited for as long as the lease lasts: the next renewal comes in time."""
    server = own_server()
    settings = ProducerSettings(redis_url=server.url, prefix=prefix)
    async with Proxy(server.port) as proxy, AsyncProducer(settings=settings) as sender:
        with server.client() as client:
            client.hset(topics_key(prefix), "orders", Policy.of({"visibility_ms": VISIBILITY_MS}).dump())
            worker, gate = new_worker(proxy.url, prefix), asyncio.Event()
            begun = hang(worker, "orders", gate)
            async with working(worker):
                await sender.send("orders", b"x")
                await wait_until_async(lambda: begun)
                proxy.strand()
                idle = _Idle(client, prefix)
                await wait_until_async(idle.was_renewed)
                proxy.reset()
                gate.set()
    assert max(idle) < VISIBILITY_MS


async def test_who_holds_nothing_does_not_tell_of_renewals(
    own_server: Callable[..., Server], prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    """While the server is away: only a worker that holds something warns of its leases."""
    server, core = own_server(), Core(prefix, "billing")
    settings = ProducerSettings(redis_url=server.url, prefix=prefix)

    def warned() -> bool:
        return any(r.levelno >= logging.WARNING and "cannot renew leases" in r.message for r in caplog.records)

    async with AsyncConnection(server.url, timeout_s=0.5) as connection, AsyncProducer(settings=settings) as sender:
        await sender.send("orders", b"x")
        [delivery] = await connection.run(read_all(core, ["orders"], limit=1))
        leases = Leases(connection, core)
        server.kill()
        with caplog.at_level(logging.DEBUG):
            renewing = asyncio.create_task(leases.run(["mails"]))  # whose policy it does not know
            await wait_until_async(lambda: "cannot renew leases" in caplog.text)
            assert not warned()
            leases.hold(hold([delivery]))
            await wait_until_async(warned)
            await cancel_all(renewing)


async def test_a_handled_message_is_renewed_until_the_server_knows(
    redis_url: str, prefix: str, sender: AsyncProducer, client: redis.Redis, declare: Callable[..., Policy]
) -> None:
    """However long ago its handler should have ended, as it did."""
    declare(visibility_ms=300)
    core = Core(prefix, "billing")
    await sender.send("orders", b"x")
    async with AsyncConnection(redis_url) as connection:
        leases = Leases(connection, core)
        [delivery] = await connection.run(read_all(core, ["orders"], limit=1))
        await leases.learn(["orders"])
        [held] = hold([delivery])
        leases.hold([held])
        assert leases.begin(held, timeout_s=0)
        held.state = State.SETTLING
        keeper = asyncio.create_task(leases.run(["orders"]))
        await wait_until_async(_Idle(client, prefix).was_renewed)
        await cancel_all(keeper)


class _Counting(AsyncConnection):
    """A connection that counts the calls of each of its round trips."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.trips: list[int] = []

    async def execute_each(self, calls: Sequence[Call[Any]]) -> list[Any]:
        self.trips.append(len(calls))
        return await super().execute_each(calls)


async def test_all_leases_are_renewed_in_one_round_trip(
    redis_url: str, prefix: str, sender: AsyncProducer, declare: Callable[..., Policy]
) -> None:
    """However many these are: on a slow link there is time for no more, and a limit for the reply."""
    declare(visibility_ms=1_500)
    core = Core(prefix, "billing")
    await sender.send_many("orders", [Message(body=b"x")] * (MAX_BATCH + 200))
    async with AsyncConnection(redis_url) as reading, _Counting(redis_url) as renewing:
        held = hold([d for _ in range(2) for d in await reading.run(read_all(core, ["orders"], limit=MAX_BATCH))])
        assert len(held) == MAX_BATCH + 200
        read_at = max(each.renewed_at for each in held)
        leases = Leases(renewing, core)
        leases.hold(held)
        await leases.learn(["orders"])
        renewing.trips.clear()
        keeper = asyncio.create_task(leases.run([]))
        await wait_until_async(lambda: any(each.renewed_at > read_at for each in held))
        await cancel_all(keeper)
    assert all(each.renewed_at > read_at for each in held)
    # A busy server may have to be asked again, but never for a part of them.
    assert set(renewing.trips) == {2}


async def test_what_is_settled_does_not_begin_again(
    redis_url: str, prefix: str, sender: AsyncProducer, declare: Callable[..., Policy]
) -> None:
    """A server that has lost its last writes delivers an entry again, to the worker that already holds it."""
    declare()
    core = Core(prefix, "billing")
    await sender.send("orders", b"x")
    async with AsyncConnection(redis_url) as connection:
        leases = Leases(connection, core)
        deliveries = await connection.run(read_all(core, ["orders"], limit=1))
        await leases.learn(["orders"])
        [held], [again] = hold(deliveries), hold(deliveries)
        leases.hold([held])
        leases.hold([again])
        assert leases.begin(held, None)
        leases.drop([held])
        assert not leases.begin(again, None)


@pytest.mark.slow
async def test_no_handler_begins_on_a_lease_that_ran_out_on_the_way(
    *,
    own_server: Callable[..., Server],
    prefix: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It counts from when the server was asked, not from when a slow link has brought the reply."""
    server = own_server()
    settings = ProducerSettings(redis_url=server.url, prefix=prefix)
    ready = ShardKeys(prefix, "orders").of("ready")
    idle_ms: list[int] = []
    async with Proxy(server.port) as proxy, AsyncProducer(settings=settings) as sender:
        with server.client() as client:
            client.hset(topics_key(prefix), "orders", Policy.of({"visibility_ms": 1_000}).dump())
            worker = new_worker(proxy.url, prefix)

            @worker.on("orders")
            async def handle(delivery: Delivery) -> None:
                entry = delivery.entry.entry
                pending = client.xpending_range(ready, "billing", entry, entry, 1)
                idle_ms.append(pending[0]["time_since_delivered"] if pending else VISIBILITY_MS)

            async with managed(server.url, prefix), working(worker):
                await wait_until_async(lambda: client.exists(ready) and client.xinfo_groups(ready))
                proxy.delay_s = 1.2
                await sender.send("orders", b"x")
                await wait_until_async(lambda: re.search("has run out|ran out", caplog.text) or idle_ms, 20)
                proxy.delay_s = 0
                await wait_until_async(lambda: idle_ms, 20)
                await wait_until_async(lambda: not client.xpending(ready, "billing")["pending"])
    assert idle_ms[0] < 1_000
    assert len(idle_ms) == 1


async def test_what_is_in_hand_does_not_need_the_registry(
    redis_url: str, prefix: str, sender: AsyncProducer, client: redis.Redis, declare: Callable[..., Policy]
) -> None:
    """It may be at another server, one that is away: leases, acks and nacks go by the last known policy."""
    declare(visibility_ms=300)
    core = Core(prefix, "billing")
    await sender.send_many("orders", [Message(body=b"x") for _ in range(3)])
    async with AsyncConnection(redis_url) as connection:
        leases = Leases(connection, core)
        deliveries = await connection.run(read_all(core, ["orders"], limit=3))
        await leases.learn(["orders"])
        leases.hold(hold(deliveries))
        core.topics.clock = lambda: time.monotonic() + 2 * REFRESH_S
        client.delete(topics_key(prefix))
        client.set(topics_key(prefix), "no hash")
        with pytest.raises(ServerError):
            await leases.learn(["orders"])
        keeper = asyncio.create_task(leases.run(["orders"]))
        await wait_until_async(_Idle(client, prefix).was_renewed)
        await cancel_all(keeper)
        assert await connection.run(core.ack(deliveries[:1])) == [AckOutcome.ACKED]
        assert await connection.run(core.nack(deliveries[1:], delay=0, error="no")) == [NackOutcome.RETRY] * 2


async def test_a_read_that_is_cancelled_as_it_lengthens_leases_is_given_back(
    redis_url: str, prefix: str, sender: AsyncProducer
) -> None:
    """By the next read, as one that is cancelled before that: nobody was given what it had fetched."""
    await sender.send("orders", b"x", id="a")
    core = Core(prefix, "billing")
    with Connection(redis_url) as connection:
        flow = read_all(core, ["orders"], limit=9, visibility=60)
        step: Any = next(flow)
        while not (isinstance(step, list) and step[-1].script and step[-1].script.name == "extend"):
            calls = (step,) if isinstance(step, Call) else step
            results = connection.execute(calls)
            step = flow.send(results[0] if isinstance(step, Call) else results)
        flow.close()
        deliveries = connection.run(read_all(core, ["orders"], limit=9))
    assert [(delivery.id, delivery.attempt) for delivery in deliveries] == [("a", 1)]


async def test_what_cannot_begin_with_its_batch_is_given_back_at_once(
    *,
    redis_url: str,
    prefix: str,
    sender: AsyncProducer,
    client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its lease has run out. The others may be handled for long: a crash meanwhile is none of its own."""
    worker, gate, batches = new_worker(redis_url, prefix), asyncio.Event(), list[list[str]]()
    begin, late = Leases.begin, ["d"]

    def begin_late(self: Leases, held: HeldDelivery, timeout_s: float | None) -> bool:
        if held.delivery.id in late:
            late.remove(held.delivery.id)
            held.renewed_at -= 1_000
        return begin(self, held, timeout_s)

    monkeypatch.setattr(Leases, "begin", begin_late)

    @worker.on("orders", batch=4)
    async def handle(deliveries: list[Delivery]) -> None:
        batches.append([f"{delivery.id}{delivery.attempt}" for delivery in deliveries])
        await gate.wait()

    await sender.send_many("orders", [Message(body=b"x", id=id) for id in "abcd"])
    ready = ShardKeys(prefix, "orders").of("ready")

    def marks() -> list[int]:
        return [row["times_delivered"] for row in client.xpending_range(ready, "billing", "-", "+", 4)]

    async with working(worker):
        await wait_until_async(lambda: batches)
        await wait_until_async(lambda: marks()[2:3] == [StartMark.YES], what="the mark to go to the third")
        gate.set()
        await wait_until_async(lambda: len(batches) == 2)
    assert batches == [["a1", "b1", "c1"], ["d1"]]
