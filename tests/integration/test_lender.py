"""A consumer that lends: what it reads is ended by id, from any process, fenced as always."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import redis

from lisa_common.model.policy import Policy
from lisa_consumer import AsyncLender, Closed, ConsumerSettings, InvalidInput, Note, OutcomeUnknown
from lisa_manager import AsyncAdmin
from lisa_producer import AsyncProducer, ProducerSettings
from support import Server
from support.housekeeping import Housekeeper
from support.keys import keys_left
from support.proxy import Proxy
from support.waiting import wait_until_async


@pytest.fixture
async def lenders(redis_url: str, prefix: str) -> AsyncIterator[list[AsyncLender]]:
    """Two lenders of one group, as two gateways have them."""
    settings = ConsumerSettings(redis_url=redis_url, prefix=prefix)
    opened = [AsyncLender("http", settings=settings) for _ in range(2)]
    yield opened
    for lender in opened:
        await lender.close()


async def _lend(lender: AsyncLender, lease: float = 60) -> None:
    deliveries = await lender.read(10, wait=30, topics="orders")
    assert await lender.lend(*[(delivery, lease) for delivery in deliveries]) == [True] * len(deliveries)


async def test_ended_by_another_lender(
    lenders: list[AsyncLender], sender: AsyncProducer, client: redis.Redis, redis_url: str, prefix: str
) -> None:
    """Acked by id at another process: the record is gone, the note is there, and no loan is left."""
    await sender.send("orders", "hello", id="a", max_retries=3)
    await _lend(lenders[0])
    note = Note(lambda lent: lent.delivery.body + b" %d" % (lent.record.max_retries if lent.record else 0), 60_000)
    assert await lenders[1].ack_lent("orders", "a", note=note) == "acked"
    assert await lenders[0].note("orders", "a") == b"hello 3"
    assert await lenders[1].ack_lent("orders", "a") is None
    await sender.send("orders", "hello", id="b")
    await _lend(lenders[0])
    async with AsyncLender("billing", settings=ConsumerSettings(redis_url=redis_url, prefix=prefix)) as other:
        assert await other.ack_lent("orders", "b") is None
        assert await other.ack_lent("orders", "b", group="http") == "acked"
    assert not [key for key in keys_left(client, prefix) if ":loan:" in key]
    assert await lenders[0].drop_note("orders", "a")
    assert not await lenders[0].drop_note("orders", "a")


async def test_an_ack_that_makes_room_keeps_its_note(own_server: Callable[..., Server], prefix: str) -> None:
    """A full server refuses the note, takes the ack, and then the note."""
    server = own_server(maxmemory_policy="noeviction")
    place: dict[str, Any] = {"redis_url": server.url, "prefix": prefix, "patience_s": 0}
    async with (
        AsyncProducer(settings=ProducerSettings(**place)) as sender,
        AsyncLender("http", settings=ConsumerSettings(**place)) as lender,
    ):
        with server.client() as client:
            await sender.send("orders", bytes(1_000_000), id="a", delay=0)
            await _lend(lender)
            client.config_set("maxmemory", client.info("memory")["used_memory"] - 500_000)
            with pytest.raises(redis.exceptions.OutOfMemoryError):
                client.set("x", "y")
            assert await lender.ack_lent("orders", "a", note=Note(lambda _: b"ended", 60_000)) == "acked"
            assert await lender.note("orders", "a") == b"ended"


async def test_a_read_is_bounded_by_bytes(sender: AsyncProducer, redis_url: str, prefix: str) -> None:
    """Of large messages as many as fit, and one more; also right after small ones. The others are ready, unspent."""
    settings = ConsumerSettings(redis_url=redis_url, prefix=prefix)
    async with AsyncLender("http", most_bytes=1_000_000, settings=settings) as lender:
        for size, name in ((300_000, "first"), (10, "small"), (300_000, "later")):
            for n in range(20):
                await sender.send("orders", b"x" * size, id=f"{name}{n}")
            seen: list[str] = []
            while len(seen) < 20:
                deliveries = await lender.read(1_000, wait=30, topics="orders")
                assert deliveries
                assert sum(len(delivery.body) for delivery in deliveries) <= 2_100_000
                assert {delivery.attempt for delivery in deliveries} == {1}
                seen += [delivery.id for delivery in deliveries]
                await lender.ack(*deliveries)
            assert sorted(seen) == sorted(f"{name}{n}" for n in range(20))


async def test_lenders_that_came_before_their_topic_go_by_its_policy(
    lenders: list[AsyncLender], sender: AsyncProducer, declare: Callable[..., Policy]
) -> None:
    """From the first message on, also one that has read nothing."""
    assert not await lenders[0].read(1, topics="orders")
    assert await lenders[1].ack_lent("orders", "a") is None
    declare(dedup_window_ms=0)
    await sender.send("orders", "x", id="a")
    await _lend(lenders[0])
    assert await lenders[1].ack_lent("orders", "a") == "acked"
    assert not (await sender.send("orders", "x", id="a")).duplicate


async def test_many_at_once_share_calls(lenders: list[AsyncLender], sender: AsyncProducer, client: redis.Redis) -> None:
    """A hundred acks of one moment take a few calls, and each has its own outcome."""
    for n in range(10):
        await sender.send("orders", "x", id=f"m{n}")
    await _lend(lenders[0])
    before = client.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"]
    ids = [*(f"m{n}" for n in range(10)), *(f"unknown{n}" for n in range(90))]
    outcomes = await asyncio.gather(*(lenders[1].ack_lent("orders", id) for id in ids))
    assert outcomes == ["acked"] * 10 + [None] * 90
    assert client.info("commandstats")["cmdstat_evalsha"]["calls"] - before <= 10


async def test_an_older_loan_ends_nothing(
    lenders: list[AsyncLender], sender: AsyncProducer, housekeeper: Housekeeper, client: redis.Redis, prefix: str
) -> None:
    """A delivery that was lent again is ended by its latest loan; the earlier one, put back, would be stale."""
    await sender.send("orders", "x", id="a")
    await _lend(lenders[0], lease=0.05)
    [key] = [key for key in keys_left(client, prefix) if ":loan:" in key]
    first = client.get(key)
    await wait_until_async(lambda: housekeeper.reclaim("orders", "http"))
    await housekeeper.promote("orders")
    await _lend(lenders[1])
    second = client.get(key)
    client.set(key, first)
    assert await lenders[0].ack_lent("orders", "a") == "stale"
    assert client.get(key) == first
    client.set(key, second)
    assert await lenders[0].ack_lent("orders", "a") == "acked"


@pytest.mark.parametrize("damaged", [b"", b"x", b"[]", b'["1-0","x",1,"c"]', b"{}"])
async def test_damaged_loan_is_none(
    lenders: list[AsyncLender], sender: AsyncProducer, client: redis.Redis, prefix: str, damaged: bytes
) -> None:
    """Anybody may write any value: then nothing is lent."""
    await sender.send("orders", "x", id="a")
    await _lend(lenders[0])
    [key] = [key for key in keys_left(client, prefix) if ":loan:" in key]
    client.set(key, damaged)
    assert await lenders[1].ack_lent("orders", "a") is None


async def test_after_a_reshard(lenders: list[AsyncLender], sender: AsyncProducer, redis_url: str, prefix: str) -> None:
    """What was lent before a reshard is found in its former shard."""
    await sender.send("orders", "x", id="a")
    await _lend(lenders[0])
    async with AsyncAdmin(redis_url, settings=ConsumerSettings(redis_url=redis_url, prefix=prefix)) as admin:
        await admin.reshard("orders", 3)
    settings = ConsumerSettings(redis_url=redis_url, prefix=prefix)
    async with AsyncLender("http", settings=settings) as fresh:
        assert await fresh.ack_lent("orders", "a") == "acked"


async def test_bad_input(lenders: list[AsyncLender]) -> None:
    """Refused before anything is asked of the server."""
    with pytest.raises(InvalidInput, match="topic must be"):
        await lenders[0].ack_lent("a/b", "a")
    with pytest.raises(InvalidInput, match="id must be"):
        await lenders[0].ack_lent("orders", "a\n")
    with pytest.raises(InvalidInput, match="topics must be"):
        await lenders[0].read(1)


async def test_a_full_server_lends(own_server: Callable[..., Server], prefix: str) -> None:
    """Also what was lent before. Each is ended by its id."""
    server = own_server(maxmemory_policy="noeviction")
    place: dict[str, Any] = {"redis_url": server.url, "prefix": prefix, "patience_s": 0}
    async with (
        AsyncProducer(settings=ProducerSettings(**place)) as sender,
        AsyncLender("http", settings=ConsumerSettings(**place)) as lender,
    ):
        for id in ("a", "b"):
            await sender.send("orders", "x", id=id)
        first, second = await lender.read(2, wait=30, topics="orders")
        assert await lender.lend((first, 60)) == [True]
        with server.client() as client:
            client.config_set("maxmemory", 1)
            assert await lender.lend((first, 3_600), (second, 3_600)) == [True, True]
            assert all(client.pttl(key) > 3_600_000 for key in client.scan_iter("*:loan:*"))
        assert [await lender.ack_lent("orders", id) for id in ("a", "b")] == ["acked", "acked"]


async def test_a_lost_reply_is_asked_for_again(own_server: Callable[..., Server], prefix: str) -> None:
    """The first ack was done, which ended the loan."""
    server = own_server()
    async with (
        AsyncProducer(settings=ProducerSettings(redis_url=server.url, prefix=prefix)) as producer,
        Proxy(server.port) as proxy,
        AsyncLender("http", settings=ConsumerSettings(redis_url=proxy.url, prefix=prefix)) as lender,
    ):
        for id in ("first-one", "second-one"):
            await producer.send("orders", b"", id=id)
        await _lend(lender)
        assert await lender.ack_lent("orders", "first-one") == "acked"
        proxy.lose_reply_to(b"EVALSHA")
        assert await lender.ack_lent("orders", "second-one") == "stale"
        assert proxy.lost == 1


async def test_a_refusal_after_a_lost_reply_does_not_say_that_nothing_was_done(
    own_server: Callable[..., Server], prefix: str
) -> None:
    """The second ack is refused; the first one was done."""
    server = own_server()
    async with (
        AsyncProducer(settings=ProducerSettings(redis_url=server.url, prefix=prefix)) as producer,
        Proxy(server.port) as proxy,
        AsyncLender("http", settings=ConsumerSettings(redis_url=proxy.url, prefix=prefix, patience_s=0)) as lender,
    ):
        for id in ("first-one", "second-one"):
            await producer.send("orders", b"", id=id)
        await _lend(lender)
        assert await lender.ack_lent("orders", "first-one") == "acked"

        async def refuse() -> None:
            with server.client() as client:
                client.config_set("min-replicas-to-write", 1)

        proxy.at_loss = refuse
        proxy.lose_reply_to(b"EVALSHA")
        with pytest.raises(OutcomeUnknown):
            await lender.ack_lent("orders", "second-one")
        found = await producer.find("orders", "second-one")
        assert found
        assert found.state == "finished"


async def test_a_close_answers_all_settlements(own_server: Callable[..., Server], prefix: str) -> None:
    """The settlement under way ends as unknown. What waits for it was not done, and the lender takes no more."""
    server = own_server()
    async with AsyncProducer(settings=ProducerSettings(redis_url=server.url, prefix=prefix)) as producer:
        for id in ("a", "b", "c"):
            await producer.send("orders", b"", id=id)
    async with Proxy(server.port) as proxy:
        lender = AsyncLender("http", settings=ConsumerSettings(redis_url=proxy.url, prefix=prefix, timeout_s=60))
        await _lend(lender)
        sent = asyncio.Event()

        async def swallow(_: bytes) -> None:
            sent.set()

        proxy.change_request = swallow
        settlements = [asyncio.create_task(lender.ack_lent("orders", "a"))]
        await sent.wait()
        settlements.append(asyncio.create_task(lender.nack_lent("orders", "b")))
        await asyncio.sleep(0)
        async with asyncio.timeout(30):
            await lender.close()
            outcomes = await asyncio.gather(*settlements, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [OutcomeUnknown, Closed]
        with pytest.raises(Closed):
            await lender.ack_lent("orders", "c")


async def test_a_close_answers_a_settlement_that_has_not_begun(
    sender: AsyncProducer, redis_url: str, prefix: str
) -> None:
    """Asked for in the same step of the event loop as the close."""
    await sender.send("orders", b"", id="a")
    lender = AsyncLender("http", settings=ConsumerSettings(redis_url=redis_url, prefix=prefix))
    await _lend(lender)
    settlement = asyncio.create_task(lender.ack_lent("orders", "a"))
    await asyncio.sleep(0)
    async with asyncio.timeout(30):
        await lender.close()
        with pytest.raises(Closed):
            await settlement
