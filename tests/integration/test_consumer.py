"""Plain consumers of both kinds: what they read, what becomes of deliveries, and whose say counts."""

import asyncio
import itertools
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.errors import InvalidInput, OutcomeUnknown, TooManyGroups, Unreachable
from lisa_common.model.keys import ShardKeys
from lisa_common.model.policy import Policy
from lisa_consumer import AckOutcome, Delivery, NackOutcome
from lisa_consumer.delivery.core import Core
from lisa_producer import AsyncProducer, Found, Message, ProducerSettings, State
from support import Server, keys_left, wait_until_async
from support.holding import read_all
from support.housekeeping import Housekeeper, server_ms

Consumers = Callable[..., Any]


async def test_what_is_read_is_what_was_sent(consumers: Consumers, sender: AsyncProducer) -> None:
    """A delivery has the body byte for byte, the headers, the times, and the number of the attempt (promise 10)."""
    sent = await sender.send("orders", b'{"n": 1}\x20', headers={"trace": "abc"}, id="a")
    [delivery] = await consumers().read()
    assert (delivery.topic, delivery.group, delivery.id, delivery.attempt) == ("orders", "billing", "a", 1)
    assert (delivery.body, delivery.json(), delivery.text()) == (b'{"n": 1} ', {"n": 1}, '{"n": 1} ')
    assert (delivery.headers, delivery.due_ms, delivery.sent_ms) == ({"trace": "abc"}, sent.due_ms, sent.due_ms)


async def test_an_acked_message_is_done(
    consumers: Consumers, sender: AsyncProducer, client: redis.Redis, prefix: str
) -> None:
    """It is not delivered again, and nothing of it is left but the tombstone of an id that the caller chose."""
    await sender.send_many("orders", [Message(body=b"x", id="mine"), Message(body=b"x")])
    consumer = consumers()
    deliveries = await consumer.read()
    assert await consumer.ack(*deliveries) == [AckOutcome.ACKED] * 2
    assert await consumer.read() == []
    found = await sender.find("orders", "mine")
    assert found is not None
    assert found.state is State.FINISHED
    keys = ShardKeys(prefix, "orders")
    assert keys_left(client, prefix) == sorted([f"{prefix}:topics", keys.of("ready"), keys.of("finished")])


async def test_reading_waits_for_the_first(consumers: Consumers, sender: AsyncProducer) -> None:
    """Without `wait` a read returns what is there; with it, it returns as soon as there is something."""
    consumer = consumers(block_s=0.1)
    assert await consumer.read() == []
    began = time.monotonic()
    assert await consumer.read(wait=0.25) == []
    assert time.monotonic() - began >= 0.25
    reading = asyncio.create_task(consumer.read(wait=60))
    await sender.send("orders", b"x")
    assert len(await reading) == 1


async def test_a_read_does_not_end_before_its_wait(redis_url: str, prefix: str) -> None:
    """The server counts whole milliseconds: what is left of the wait is rounded up."""
    ticks = itertools.count()
    core = Core(prefix, "billing", clock=lambda: next(ticks) * 0.000_3)
    async with AsyncConnection(redis_url) as connection:
        began = next(ticks)
        assert await connection.run(read_all(core, ["orders"], limit=1, wait=0.002)) == []
    outside = 2  # ticks: before the read began, and after it ended
    assert (next(ticks) - began - outside) * 0.000_3 >= 0.002


async def test_what_stands_behind_the_retries_of_another_group_is_read(
    consumers: Consumers, sender: AsyncProducer
) -> None:
    """Without `wait`, too: a read that brings nothing says that there is nothing."""
    one, other = consumers(group="one"), consumers(group="other")
    await sender.send_many("orders", [Message(body=b"x") for _ in range(3)])
    given_back = await one.read()
    await other.ack(*await other.read())
    await one.release(*given_back)
    await sender.send("orders", b"x", id="for both")
    assert [delivery.id for delivery in await other.read(limit=2)] == ["for both"]
    assert await other.read() == []


async def test_the_first_group_gets_what_was_sent_before(consumers: Consumers, sender: AsyncProducer) -> None:
    """A later group gets what becomes ready from its making on."""
    await sender.send("orders", b"before", id="before")
    first, later = consumers(group="first"), consumers(group="later")
    assert [delivery.id for delivery in await first.read()] == ["before"]
    assert await later.read() == []
    await sender.send("orders", b"after", id="after")
    assert [delivery.id for delivery in await first.read()] == ["after"]
    assert [delivery.id for delivery in await later.read()] == ["after"]


async def test_a_consumer_that_came_before_its_topic_goes_by_the_policy(
    consumers: Consumers, sender: AsyncProducer, declare: Callable[..., Policy]
) -> None:
    """From the first message on. A consumer knows policies for a while, but not those that were not there."""
    consumer = consumers()
    assert await consumer.read() == []
    declare(dedup_window_ms=0)
    await sender.send("orders", b"x", id="a")
    (delivery,) = await consumer.read(wait=30)
    await consumer.ack(delivery)
    assert not (await sender.send("orders", b"x", id="a")).duplicate


async def test_consumers_of_one_group_share(consumers: Consumers, sender: AsyncProducer) -> None:
    """Each message goes to one of them, at most `limit` at once."""
    await sender.send_many("orders", [Message(body=b"x", id=f"m{n}") for n in range(10)])
    one, two = consumers(), consumers()
    assert one.name != two.name
    read = [*await one.read(4), *await two.read(4), *await one.read(4)]
    assert sorted(delivery.id for delivery in read) == sorted(f"m{n}" for n in range(10))


async def test_several_topics_are_read_at_once(consumers: Consumers, sender: AsyncProducer) -> None:
    """A read brings up to `limit` of each topic, and one call settles them all, in the order given."""
    for topic in ("orders", "mails"):
        await sender.send_many(topic, [Message(body=b"x", id=f"{topic}-{n}") for n in range(3)])
    consumer = consumers(("orders", "mails"))
    deliveries = await consumer.read(2)
    assert sorted(delivery.id for delivery in deliveries) == ["mails-0", "mails-1", "orders-0", "orders-1"]
    mixed = sorted(deliveries, key=lambda delivery: delivery.id[-1])
    outcomes = await consumer.nack(mixed[0], delay=60) + await consumer.reject(mixed[1])
    assert outcomes == [NackOutcome.RETRY, NackOutcome.GARBAGE]
    assert await consumer.ack(*mixed) == [AckOutcome.LATE, AckOutcome.LATE, AckOutcome.ACKED, AckOutcome.ACKED]


async def test_a_call_that_was_done_in_part_says_so(
    consumers: Consumers, own_server: Callable[..., Server], prefix: str
) -> None:
    """One of two topics is refused: the error does not say that nothing was done, and a repeat tells what was."""
    server = own_server()
    connected = consumers(("orders", "mails"), url=server.url.replace("://", "://jo:pw@"))
    with server.client() as client:
        client.acl_setuser("jo", enabled=True, passwords=["+pw"], keys=["*"], channels=["*"], categories=["+@all"])
        async with AsyncProducer(settings=ProducerSettings(redis_url=server.url, prefix=prefix)) as producer:
            for topic in ("orders", "mails"):
                await producer.send(topic, b"x")
        orders, mails = sorted(await connected.read(2, wait=5), key=lambda delivery: delivery.topic, reverse=True)
        client.acl_setuser("jo", enabled=True, reset_keys=True, keys=[f"{prefix}*orders*"])
        with pytest.raises(OutcomeUnknown, match="a part was done"):
            await connected.ack(orders, mails)
        client.acl_setuser("jo", enabled=True, keys=["*"])
        assert await connected.ack(orders, mails) == [AckOutcome.STALE, AckOutcome.ACKED]


async def test_a_nack_retries_after_its_delay(
    consumers: Consumers, sender: AsyncProducer, housekeeper: Housekeeper, connection: AsyncConnection
) -> None:
    """The attempt counts, the error is kept, and the retry is due after the delay or the policy's backoff."""

    async def nacked(delivery: Delivery, **options: Any) -> tuple[Found, int, int]:
        """What is known of the message then, and between which moments the nack was made."""
        before_ms = await server_ms(connection)
        assert await consumer.nack(delivery, **options) == [NackOutcome.RETRY]
        after_ms = await server_ms(connection)
        found = await sender.find("orders", "a")
        assert found is not None
        assert found.due_ms is not None
        return found, before_ms, after_ms

    await sender.send("orders", b"x", id="a")
    consumer = consumers()
    [delivery] = await consumer.read()
    found, before_ms, after_ms = await nacked(delivery, delay=60, error="no stock")
    assert (found.state, found.attempts, found.copies[0].failure.error) == (State.RETRY, 1, "no stock")
    assert before_ms + 60_000 <= found.due_ms <= after_ms + 60_000
    assert await housekeeper.promote("orders", after_s=30) == 0
    assert await housekeeper.promote("orders", after_s=60) == 1
    [delivery] = await consumer.read()
    assert (delivery.id, delivery.attempt, delivery.body) == ("a", 2, b"x")
    found, before_ms, after_ms = await nacked(delivery)
    assert before_ms + 1_800 <= found.due_ms <= after_ms + 2_200, "the second backoff is 2 s, give or take its jitter"
    assert await housekeeper.promote("orders", after_s=2.2) == 1


async def test_rejected_and_worn_out_messages_are_garbage(consumers: Consumers, sender: AsyncProducer) -> None:
    """A reject ends a message whatever attempts are left; a nack when none are left. The error text is kept."""
    await sender.send("orders", b"x", id="rejected")
    await sender.send("orders", b"x", id="worn", max_retries=0)
    consumer = consumers()
    rejected, worn = await consumer.read()
    assert await consumer.reject(rejected, error="no such order") == [NackOutcome.GARBAGE]
    assert await consumer.nack(worn, error="boom") == [NackOutcome.GARBAGE]
    for id, error in (("rejected", "no such order"), ("worn", "boom")):
        found = await sender.find("orders", id)
        assert found is not None
        assert (found.state, found.copies[0].failure.error, found.record.body) == (State.GARBAGE, error, b"x")


async def test_a_release_spends_no_attempt(consumers: Consumers, sender: AsyncProducer) -> None:
    """What is given back is ready at once, for any consumer, as if it had not been read."""
    await sender.send_many("orders", [Message(body=b"x", id="a"), Message(body=b"x", id="b")])
    one, two = consumers(), consumers()
    deliveries = await one.read()
    assert await one.release(*deliveries) == 2
    again = await two.read()
    assert [(delivery.id, delivery.attempt) for delivery in again] == [("a", 1), ("b", 1)]
    assert await one.release(*deliveries) == 0
    assert await one.ack(*deliveries) == [AckOutcome.STALE] * 2
    assert await two.ack(*again) == [AckOutcome.ACKED] * 2


async def test_an_abandoned_delivery_comes_again(
    consumers: Consumers, sender: AsyncProducer, housekeeper: Housekeeper
) -> None:
    """Once the visibility timeout has passed the attempt counts and the message is retried; the old ack is stale."""
    await sender.send("orders", b"x")
    one, two = consumers(), consumers()
    old = await one.read()
    assert await housekeeper.reclaim("orders", "billing", after_s=20) == 0
    assert await housekeeper.reclaim("orders", "billing", after_s=30) == 1
    assert await housekeeper.promote("orders", after_s=32) == 1
    new = await two.read()
    assert new[0].attempt == 2
    assert await one.ack(*old) == [AckOutcome.STALE]
    assert await one.nack(*old) == [NackOutcome.STALE]
    assert await one.extend(*old) == [False]
    assert await two.ack(*new) == [AckOutcome.ACKED], "a stale ack changes nothing (promise 5)"


@pytest.mark.parametrize("promoted", [False, True], ids=["to be retried", "ready again"])
async def test_a_late_ack_withdraws_the_retry(
    consumers: Consumers, sender: AsyncProducer, housekeeper: Housekeeper, *, promoted: bool
) -> None:
    """While no newer delivery has begun, an ack after the visibility timeout still counts (promise 4)."""
    await sender.send("orders", b"x", id="a")
    consumer = consumers()
    old = await consumer.read()
    await housekeeper.reclaim("orders", "billing", after_s=30)
    if promoted:
        await housekeeper.promote("orders", after_s=32)
    assert await consumer.ack(*old) == [AckOutcome.LATE]
    await housekeeper.promote("orders", after_s=60)
    assert await consumer.read() == []
    found = await sender.find("orders", "a")
    assert found is not None
    assert found.state is State.FINISHED


async def test_a_lease_may_be_shorter_for_one_read(
    consumers: Consumers, sender: AsyncProducer, housekeeper: Housekeeper
) -> None:
    """With `visibility` the deliveries of this read run out earlier."""
    await sender.send("orders", b"x")
    consumer = consumers()
    assert len(await consumer.read(visibility=20)) == 1
    assert await housekeeper.reclaim("orders", "billing", after_s=10) == 0
    assert await housekeeper.reclaim("orders", "billing", after_s=20) == 1


async def test_a_lease_may_be_longer_for_one_read(
    consumers: Consumers, sender: AsyncProducer, housekeeper: Housekeeper
) -> None:
    """With `visibility` the deliveries of this read run out later than others."""
    await sender.send("orders", b"x")
    consumer = consumers()
    assert len(await consumer.read(visibility=3_600)) == 1
    assert await housekeeper.reclaim("orders", "billing", after_s=3_500) == 0
    assert await housekeeper.reclaim("orders", "billing", after_s=3_600) == 1


async def test_extending_renews_a_lease(consumers: Consumers, sender: AsyncProducer, housekeeper: Housekeeper) -> None:
    """A lease counts from its last renewal, and has the length that was given then; only its holder can renew it."""
    await sender.send("orders", b"x")
    one, two = consumers(), consumers()
    deliveries = await one.read(visibility=10)
    assert await two.extend(*deliveries) == [False]
    assert await one.extend(*deliveries, lease=50) == [True]
    assert await housekeeper.reclaim("orders", "billing", after_s=30) == 0
    assert await one.extend(*deliveries, lease=60) == [True]
    assert await housekeeper.reclaim("orders", "billing", after_s=51) == 0
    with pytest.raises(InvalidInput, match="lease"):
        await one.extend(*deliveries, lease=0)
    assert await housekeeper.reclaim("orders", "billing", after_s=60) == 1
    assert await one.extend(*deliveries) == [False]


async def test_what_was_cancelled_or_has_expired_is_not_delivered(
    consumers: Consumers, sender: AsyncProducer, connection: AsyncConnection
) -> None:
    """Neither is seen by a reader, though both stand in ready (promise 8)."""
    await sender.send("orders", b"x", id="cancelled")
    expiring = await sender.send("orders", b"x", id="expired", ttl=0.001)
    consumer = consumers()
    await sender.cancel("orders", "cancelled")

    async def has_expired() -> bool:
        return await server_ms(connection) > expiring.due_ms

    await wait_until_async(has_expired)
    assert await consumer.read() == []
    found = await sender.find("orders", "expired")
    assert found is not None
    assert (found.state, found.record.due_ms) == (State.GARBAGE, expiring.due_ms)
    assert found.copies[0].failure.reason == "expired"


async def test_a_cancelled_delivery_has_no_further_one(
    consumers: Consumers, sender: AsyncProducer, housekeeper: Housekeeper
) -> None:
    """A message cancelled while a consumer has it is gone when that consumer gives it up."""
    await sender.send("orders", b"x", id="a")
    consumer = consumers()
    deliveries = await consumer.read()
    await sender.cancel("orders", "a")
    assert await consumer.nack(*deliveries) == [NackOutcome.GONE]
    assert await housekeeper.promote("orders", after_s=60) == 0
    assert await sender.find("orders", "a") is None


async def test_deliveries_of_another_group_are_refused(consumers: Consumers, sender: AsyncProducer) -> None:
    """Settling what another group read is an error, as its entry means nothing here."""
    await sender.send("orders", b"x")
    deliveries = await consumers(group="other").read()
    with pytest.raises(InvalidInput, match="other"):
        await consumers().ack(*deliveries)


@pytest.mark.parametrize(
    "bad",
    [{"limit": 0}, {"limit": 1_001}, {"wait": -1}, {"wait": "1"}, {"visibility": 0}, {"visibility": float("nan")}],
    ids=repr,
)
async def test_bad_reads_are_refused(
    consumers: Consumers, client: redis.Redis, prefix: str, bad: dict[str, Any]
) -> None:
    """The error names the field, and not even the group is made (promise 13)."""
    [field] = bad
    with pytest.raises(InvalidInput) as caught:
        await consumers().read(**bad)
    assert caught.value.field == field
    assert keys_left(client, prefix) == []


@pytest.mark.parametrize("name", ["", "a b", "x" * 129, "a/b", "a,b"])
async def test_bad_group_names_are_refused(consumers: Consumers, name: str) -> None:
    """A group's name stands in keys and lists: it may hold neither slash nor comma."""
    with pytest.raises(InvalidInput, match="group"):
        consumers(group=name)


@pytest.mark.parametrize("topic", ["", "a b", 5, None, ["a"]], ids=repr)
async def test_bad_topics_are_refused(consumers: Consumers, client: redis.Redis, prefix: str, topic: Any) -> None:
    """Whatever is given for one (promise 13)."""
    with pytest.raises(InvalidInput, match="topic"):
        consumers((topic,))
    assert keys_left(client, prefix) == []


async def test_a_consumer_without_topics_is_refused(consumers: Consumers) -> None:
    """At once, as there is nothing that it could read."""
    with pytest.raises(InvalidInput, match="topics must be at least one name"):
        consumers(())


async def test_settling_nothing_asks_nothing(consumers: Consumers) -> None:
    """An empty batch is no error."""
    consumer = consumers()
    assert (await consumer.ack(), await consumer.nack(), await consumer.extend()) == ([], [], [])
    assert await consumer.release() == 0


async def test_foreign_entries_are_passed_over(
    consumers: Consumers, sender: AsyncProducer, client: redis.Redis, prefix: str
) -> None:
    """What somebody else wrote into the stream is acked unseen; the messages around it are read (promise 12)."""
    ready = ShardKeys(prefix, "orders").of("ready")
    client.xadd(ready, {"foo": "bar"})
    client.xadd(ready, {"id": "a", "due": "soon", "n": "1"})
    client.xadd(ready, {b"id": b"\xff", "due": "1", "n": "1"})
    await sender.send("orders", b"x", id="a")
    assert [delivery.id for delivery in await consumers().read()] == ["a"]
    assert client.xpending(ready, "billing")["pending"] == 1


async def test_an_unreadable_record_is_garbage(
    consumers: Consumers, sender: AsyncProducer, client: redis.Redis, prefix: str
) -> None:
    """A record of a later release, or a damaged one, does not keep the others; it is kept to be looked at."""
    await sender.send_many("orders", [Message(body=b"x", id="bad"), Message(body=b"x", id="good")])
    client.hset(ShardKeys(prefix, "orders").of("messages"), "bad", b"\x63garbled record")
    assert [delivery.id for delivery in await consumers().read()] == ["good"]
    found = await sender.find("orders", "bad")
    assert found is not None
    assert (found.state, found.record) == (State.GARBAGE, None)


async def test_a_group_that_was_destroyed_is_made_again(
    consumers: Consumers, sender: AsyncProducer, client: redis.Redis, prefix: str
) -> None:
    """A reader, even one that waits, goes on when somebody destroys its group or its stream (promise 14)."""
    ready = ShardKeys(prefix, "orders").of("ready")
    consumer = consumers(block_s=60, timeout_s=10)
    assert await consumer.read() == []
    for destroy in (lambda: client.xgroup_destroy(ready, "billing"), lambda: client.delete(ready)):
        reading = asyncio.create_task(consumer.read(wait=60))
        await wait_until_async(lambda: client.info("clients")["blocked_clients"])
        destroy()
        await wait_until_async(lambda: client.exists(ready) and client.xinfo_groups(ready))
        await sender.send("orders", b"x")
        [delivery] = await reading
        assert await consumer.ack(delivery) == [AckOutcome.ACKED]


async def test_scripts_are_loaded_again_after_a_flush(
    consumers: Consumers, own_server: Callable[..., Server], prefix: str
) -> None:
    """Reading and settling go on when the server forgets all scripts (promise 14)."""
    server = own_server()
    consumer = consumers(url=server.url)
    async with AsyncProducer(settings=ProducerSettings(redis_url=server.url, prefix=prefix)) as producer:
        await producer.send_many("orders", [Message(body=b"x", id=f"m{n}") for n in range(4)])
    with server.client() as client:
        client.script_flush()
        deliveries = await consumer.read()
        assert [delivery.id for delivery in deliveries] == ["m0", "m1", "m2", "m3"]
        client.script_flush()
        assert await consumer.extend(deliveries[0]) == [True]
        client.script_flush()
        assert await consumer.release(deliveries[0]) == 1
        client.script_flush()
        assert await consumer.nack(deliveries[1]) == [NackOutcome.RETRY]
        client.script_flush()
        assert await consumer.ack(*deliveries[2:]) == [AckOutcome.ACKED] * 2


async def test_a_restart_is_not_noticed(consumers: Consumers, own_server: Callable[..., Server], prefix: str) -> None:
    """A consumer waits for the server for `patience_s`, and what it holds is still its own afterwards (promise 14)."""
    server = own_server(appendonly="yes")
    consumer, hasty = consumers(url=server.url), consumers(url=server.url, patience_s=0.05)
    async with AsyncProducer(settings=ProducerSettings(redis_url=server.url, prefix=prefix)) as producer:
        await producer.send("orders", b"x", id="a")
    [delivery] = await consumer.read()
    await asyncio.to_thread(server.stop)
    with pytest.raises(Unreachable):
        await hasty.read()
    acking = asyncio.create_task(consumer.ack(delivery))
    await asyncio.to_thread(server.start)
    assert await acking == [AckOutcome.ACKED]
    assert await consumer.read() == []


async def test_a_topic_has_no_more_groups_than_its_policy_allows(
    consumers: Consumers, declare: Callable[..., Any]
) -> None:
    """A consumer of another group is refused, and told of the limit; those of groups that are there go on."""
    declare(max_groups=1)
    await consumers().read()
    with pytest.raises(TooManyGroups, match="max_groups"):
        await consumers(group="audit").read()
    assert await consumers().read() == []
