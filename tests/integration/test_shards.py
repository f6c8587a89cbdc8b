"""A topic of several shards behaves like one topic for all its users."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import redis

from lisa_common.model.policy import Policy
from lisa_common.model.sharding import Layout
from lisa_consumer import Delivery
from lisa_producer import (
    AsyncProducer,
    CancelOutcome,
    Message,
    PartialSend,
    RescheduleOutcome,
    SendOutcome,
    SendResult,
    State,
)
from support import wait_until_async
from support.commands import Commands
from support.running import Handled, managed, new_worker, working

SHARDS = 4
IDS = [f"m{number}" for number in range(40)]


@pytest.fixture
def spread(declare: Callable[..., Policy], prefix: str) -> Layout:
    """The topic "orders", declared with four shards."""
    return Layout(prefix, "orders", declare(shards=SHARDS, visibility_ms=1_000, backoff_base_ms=1, backoff_jitter=0))


def _lengths(client: redis.Redis, layout: Layout, name: str) -> list[int]:
    count: Any = {"waiting": client.zcard, "ready": client.xlen, "messages": client.hlen}[name]
    return [count(keys.of(name)) for keys in layout.shards]


async def test_each_id_goes_to_its_shard(producer: Any, spread: Layout, client: redis.Redis) -> None:
    """One by one and in batches, with chosen ids and generated ones; lookups find it there."""
    await producer.send("orders", b"x", id="m0", delay=60)
    report = await producer.send_many("orders", [Message(body=b"x", delay=60, id=id) for id in IDS])
    generated = await producer.send_many("orders", [Message(body=b"x", delay=60) for _ in range(40)])
    assert (report.sent, report.duplicates, generated.sent) == (39, 1, 40)
    assert [result.position for result in report.results] == list(range(40))
    ids = [result.id for result in (*report.results, *generated.results)]
    assert all(client.hexists(spread.home(id).of("messages"), id) for id in ids if id)
    assert sum(_lengths(client, spread, "waiting")) == 80
    assert min(_lengths(client, spread, "waiting")) > 0


async def test_each_message_of_many_shards_has_its_own_result(
    producers: Any, spread: Layout, client: redis.Redis
) -> None:
    """Sent, known, known within the same call, and refused, in calls whose parts go to four shards."""
    producer = producers(batch_messages=100)
    for id in IDS[::5]:
        await producer.send("orders", b"x", id=id, delay=60)
    ids = [*IDS, *IDS[::4], None, None]
    messages = [Message(body=b"x", id=id, delay=-1 if at % 7 == 0 else 60 + at) for at, id in enumerate(ids)]
    told: list[SendResult] = []
    report = await producer.send_many("orders", messages, on_batch=told.extend)
    taken, expected = set(IDS[::5]), list[tuple[str | None, SendOutcome]]()
    for at, id in enumerate(ids):
        if at % 7 == 0:
            outcome = SendOutcome.FAILED
        elif id in taken:
            outcome = SendOutcome.DUPLICATE
        else:
            outcome = SendOutcome.SENT
            taken.add(id or "")
        expected.append((id, outcome))
    assert [(r.position, r.id if messages[r.position].id else None, r.outcome) for r in told] == [
        (at, *each) for at, each in enumerate(expected)
    ]
    assert Counter(outcome for _, outcome in expected) == Counter(
        sent=report.sent, duplicate=report.duplicates, failed=report.failed
    )
    assert min(_lengths(client, spread, "waiting")) > 0
    for result in told:
        if result.outcome is SendOutcome.SENT:
            found = await producer.find("orders", result.id)
            assert found.due_ms == result.due_ms


async def test_ids_that_all_belong_to_one_shard_are_sent(
    producers: Any, declare: Callable[..., Policy], prefix: str, client: redis.Redis
) -> None:
    """For any number of shards, and in the given order."""
    layout = Layout(prefix, "orders", declare(shards=8, ttl_ms=60_000))
    shard = layout.shards[3]
    ids = [id for id in (f"user-{number}" for number in range(40_000)) if layout.home(id) == shard]
    report = await producers(batch_messages=1_000).send_many("orders", [Message(body=b"x", id=id) for id in ids])
    assert (report.sent, report.duplicates, report.failed) == (len(ids), 0, 0)
    assert [fields[b"id"].decode() for _, fields in client.xrange(shard.of("ready"))] == ids
    assert client.zcard(shard.of("expiring")) == client.hlen(shard.of("messages")) == len(ids)


async def test_an_id_is_found_cancelled_and_rescheduled(producer: Any, spread: Layout) -> None:
    """In any shard."""
    assert spread
    for id in IDS[:8]:
        await producer.send("orders", b"x", id=id, delay=60)
    assert {(await producer.find("orders", id)).state for id in IDS[:8]} == {State.WAITING}
    assert {await producer.reschedule("orders", id, delay=90) for id in IDS[:8]} == {RescheduleOutcome.RESCHEDULED}
    assert {await producer.cancel("orders", id) for id in IDS[:8]} == {CancelOutcome.CANCELLED}
    assert await producer.find("orders", "m0") is None
    assert await producer.cancel("orders", "m0") == CancelOutcome.UNKNOWN


async def test_a_failure_is_reported_for_its_shard_alone(producers: Any, spread: Layout, client: redis.Redis) -> None:
    """A batch that is partly sent says which messages are, and which are not."""
    client.set(spread.shards[2].of("messages"), "no hash")
    results: list[Any] = []
    messages = [Message(body=b"x", delay=60, id=id) for id in IDS]
    with pytest.raises(PartialSend, match="messages to 'orders' failed; the first because: WRONGTYPE"):
        await producers().send_many("orders", messages, on_result=results.append)
    sent = {result.id for result in results if result.outcome is SendOutcome.SENT}
    failed = {result.id for result in results if result.outcome is SendOutcome.FAILED}
    assert sent | failed == set(IDS)
    assert {id for id in IDS if spread.home(id).shard == "2"} <= failed
    assert all(client.hexists(spread.home(id).of("messages"), id) for id in sent)
    assert sum(client.hlen(keys.of("messages")) for keys in spread.shards if keys.shard != "2") == len(sent)


async def test_a_consumer_reads_and_settles_all_shards(
    producer: Any, consumers: Callable[..., Any], spread: Layout, client: redis.Redis
) -> None:
    """In one call each; nacks, rejects, extensions and releases go to the shard of the read."""
    await producer.send_many("orders", [Message(body=id, id=id) for id in IDS])
    consumer = consumers()
    taken = {delivery.id: delivery for delivery in await consumer.read(limit=400)}
    assert set(taken) == set(IDS)
    assert {delivery.shard for delivery in taken.values()} == set("0123")
    assert all(await consumer.extend(*taken.values()))
    deliveries = list(taken.values())
    await consumer.nack(*deliveries[:5], delay=60)
    await consumer.reject(*deliveries[5:10], error="no")
    for delivery in deliveries[10:15]:
        await consumer.release(delivery)
    assert set(await consumer.ack(*deliveries[15:])) == {"acked"}
    assert set(await consumer.ack(*deliveries[15:])) == {"stale"}
    assert sum(client.zcard(keys.of("retry")) for keys in spread.shards) == 5
    assert sum(client.zcard(keys.of("garbage")) for keys in spread.shards) == 5
    again = await consumer.read(limit=400)
    assert {delivery.id for delivery in again} == {delivery.id for delivery in deliveries[10:15]}
    assert {delivery.attempt for delivery in again} == {1}


async def test_a_limit_is_of_the_topic(producer: Any, consumers: Callable[..., Any], spread: Layout) -> None:
    """It is not a limit for each shard, unless it is less than the number of shards."""
    assert spread
    await producer.send_many("orders", [Message(body=id, id=id) for id in IDS])
    consumer = consumers()
    assert len(await consumer.read(limit=8)) == 8
    assert len(await consumer.read(limit=1)) == SHARDS


async def test_whole_lives(
    redis_url: str, prefix: str, sender: AsyncProducer, spread: Layout, client: redis.Redis
) -> None:
    """Sent, promoted, failed, retried, abandoned, handled: each once, and nothing is left."""
    handled, failed = Handled(), Counter[str]()
    worker = new_worker(redis_url, prefix)

    @worker.on("orders")
    async def handle(delivery: Delivery) -> None:
        failed[delivery.id] += 1
        if failed[delivery.id] == 1 and delivery.id.endswith("7"):
            raise RuntimeError("once")
        handled.append(delivery)

    async with managed(redis_url, prefix), working(worker):
        await sender.send_many("orders", [Message(body=b"x", id=id, delay=0.2) for id in IDS])
        await wait_until_async(lambda: len(handled) == len(IDS))
        assert sorted(handled.ids) == sorted(IDS)
        await wait_until_async(lambda: not any(_lengths(client, spread, "ready")))
    assert not any(_lengths(client, spread, "messages"))
    assert [failed[id] for id in IDS if id.endswith("7")] == [2, 2, 2, 2]


async def test_abandoned_deliveries_are_reclaimed(
    redis_url: str, prefix: str, sender: AsyncProducer, consumers: Callable[..., Any], spread: Layout
) -> None:
    """In each shard."""
    assert spread
    await sender.send_many("orders", [Message(body=b"x", id=id) for id in IDS])
    assert len(await consumers(name="gone").read(limit=400)) == len(IDS)
    async with managed(redis_url, prefix):
        consumer, again = consumers(), dict[str, int]()
        while len(again) < len(IDS):
            for delivery in await consumer.read(limit=400, wait=10):
                again[delivery.id] = delivery.attempt
                await consumer.ack(delivery)
    assert set(again.values()) == {2}


async def test_operators_see_one_topic(
    sender: AsyncProducer, consumers: Callable[..., Any], spread: Layout, commands: Commands
) -> None:
    """Sizes add up; dead letters are in order; replay, purge and cancel reach every shard."""
    assert spread
    await sender.send_many("orders", [Message(body=b"x", id=f"w{id}", delay=60) for id in IDS])
    await sender.send_many("orders", [Message(body=b"x", id=id) for id in IDS])
    consumer = consumers(name="reader")
    taken = await consumer.read(limit=20)
    for delivery in taken:
        await consumer.reject(delivery, error="no")
    await consumer.read(limit=8)
    [status] = commands.manager("status", "orders", "--json").document
    counts = {name: status[name] for name in ("waiting", "ready", "delivered", "garbage")}
    assert counts == {"waiting": 40, "ready": 12, "delivered": 8, "garbage": 20}
    assert sum(status["due_in"].values()) == 40
    [group] = status["groups"]
    assert group == {"group": "billing", "ready": 12, "delivered": 8, "consumers": 1}
    [group] = commands.manager("group", "list", "orders", "--json").document
    assert (group["ready"], group["delivered"], group["garbage"], group["consumers"]) == (12, 8, 20, 1)
    letters = commands.manager("garbage", "list", "orders", "--json", "--limit", "10").document
    died = [letter["died_ms"] for letter in letters]
    assert (len(died), died) == (10, sorted(died, reverse=True))
    assert commands.manager("garbage", "replay", "orders", taken[0].id, taken[1].id).out == "replayed 2\n"
    assert commands.manager("garbage", "purge", "orders", "--all", "--yes").out == "purged 18\n"
    assert commands.manager("show", "orders", "wm3", "--json").document["state"] == "waiting"
    cancelled = commands.manager("cancel", "orders", "wm1", "wm2", "wm3", "nobody", "--json").document
    assert [one["outcome"] for one in cancelled] == ["cancelled"] * 3 + ["unknown"]
    assert commands.manager("check", "--json").document == {
        "topics": 1,
        "messages": 59,
        "undecided": 0,
        "problems": [],
    }


async def test_group_and_topic_are_dropped_whole(
    sender: AsyncProducer, consumers: Callable[..., Any], spread: Layout, commands: Commands, client: redis.Redis
) -> None:
    """In all shards; with messages left only by force."""
    await sender.send_many("orders", [Message(body=b"x", id=id) for id in IDS])
    await consumers().read(limit=8)
    await consumers(group="audit").read()
    assert commands.manager("group", "drop", "orders", "billing", "--yes").code == 2
    assert commands.manager("group", "drop", "orders", "billing", "--force", "--yes").code == 0
    assert [len(client.xinfo_groups(keys.of("ready"))) for keys in spread.shards] == [1] * SHARDS
    await sender.send("orders", b"x", delay=60)
    assert commands.manager("topic", "drop", "orders", "--yes").code == 2
    assert commands.manager("topic", "drop", "orders", "--yes", "--force").code == 0
    assert not any(client.exists(*keys.all()) for keys in spread.shards)


def test_the_number_is_fixed_when_a_topic_is_declared(commands: Commands) -> None:
    """A change takes a reshard. After a drop the number stays for a while, as programs may still use it."""
    assert commands.manager("topic", "create", "orders", "--shards", "4").code == 0
    assert commands.manager("topic", "set", "orders", "--shards", "4", "--priority", "1").code == 0
    ran = commands.manager("topic", "set", "orders", "--shards", "2")
    assert (ran.code, "policy field shards must be " in ran.err, "topic reshard" in ran.err) == (
        2,
        True,
        True,
    )
    assert commands.manager("topic", "drop", "orders", "--yes").code == 0
    ran = commands.manager("topic", "create", "orders", "--shards", "2")
    assert (ran.code, "recent drop" in ran.err) == (2, True)
    assert commands.manager("topic", "create", "orders").code == 0
    assert commands.manager("topic", "set", "orders", "--shards", "4").code == 0
