"""`lisa-manager topic reshard`, while producers, consumers and managers work."""

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import redis

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.errors import LisaError, NotConfirmed, OutcomeUnknown
from lisa_common.model.keys import ShardKeys, dropped_key, topics_key
from lisa_common.model.policy import Policy
from lisa_common.model.sharding import Layout
from lisa_common.protocol import consuming
from lisa_common.protocol.call import Call, Flow, command
from lisa_consumer import Delivery
from lisa_manager import AsyncAdmin
from lisa_manager.resharding import close_former, reshard
from lisa_manager.topic_limits import read_limits
from lisa_producer import (
    AsyncProducer,
    CancelOutcome,
    Confirm,
    Message,
    PartialSend,
    ProducerSettings,
    RescheduleOutcome,
    SendOutcome,
    State,
)
from support import Server, wait_until_async
from support.commands import Commands
from support.running import Handled, managed, new_worker, working

IDS = [f"m{number}" for number in range(40)]


def _layout(client: redis.Redis, prefix: str) -> Layout:
    stored: Any = client.hget(topics_key(prefix), "orders")
    return Layout(prefix, "orders", Policy.load(stored))


def _reshard(commands: Commands, shards: int) -> None:
    ran = commands.manager("topic", "reshard", "orders", "--shards", str(shards))
    assert ran.code == 0, ran.err


async def test_stored_messages_stay_and_are_known(
    producer: Any, commands: Commands, client: redis.Redis, prefix: str
) -> None:
    """Old ids are duplicates, and can be found, rescheduled and cancelled; new ones go to the new shards."""
    await producer.send_many("orders", [Message(body=b"x", id=id, delay=60) for id in IDS])
    _reshard(commands, 4)
    again = await producer.send_many("orders", [Message(body=b"y", id=id, delay=60) for id in (*IDS, "new")])
    assert (again.sent, again.duplicates) == (1, 40)
    assert (await producer.send("orders", b"y", id="m7", delay=60)).outcome is SendOutcome.DUPLICATE
    assert (await producer.send("orders", b"y", id="new", delay=60)).outcome is SendOutcome.DUPLICATE
    assert (await producer.send("orders", b"y", delay=60)).outcome is SendOutcome.SENT
    layout = _layout(client, prefix)
    assert client.hlen(layout.former[0][0].of("messages")) == 40
    assert sum(client.hlen(keys.of("messages")) for keys in layout.shards) == 2
    assert (await producer.find("orders", "m7")).state is State.WAITING
    assert await producer.reschedule("orders", "m7", delay=90) is RescheduleOutcome.RESCHEDULED
    assert await producer.cancel("orders", "m7") is CancelOutcome.CANCELLED
    assert (await producer.send("orders", b"y", id="m7", delay=60)).outcome is SendOutcome.SENT
    assert client.hexists(layout.home("m7").of("messages"), "m7")


async def test_new_messages_are_sent_beside_known_ones_without_confirmation(own_server: Callable[..., Server]) -> None:
    """`NotConfirmed` says of each message that it is stored."""
    server = own_server()
    async with AsyncProducer(server.url) as producer, AsyncAdmin(server.url) as admin:
        await producer.send("orders", b"x", id="known", delay=60)
        await admin.reshard("orders", 2)
        messages = [Message(body=b"x", id=id, delay=60) for id in ("known", "new")]
        with pytest.raises(PartialSend) as caught:
            await producer.send_many("orders", messages, confirm=Confirm(replicas=1, timeout=0.01))
        assert [type(result.error) for result in caught.value.report.results] == [NotConfirmed] * 2
        assert [(await admin.find("orders", id)).state for id in ("known", "new")] == [State.WAITING] * 2


async def test_a_producer_that_missed_it_is_redirected(
    producer: Any, sender: AsyncProducer, commands: Commands, client: redis.Redis, prefix: str
) -> None:
    """A producer that knows the former shards neither sends there nor misses what others sent since."""
    for one in (producer, sender):
        await one.send("orders", b"x", id="first", delay=60)
    _reshard(commands, 4)
    assert (await sender.send("orders", b"x", id="m1", delay=60)).outcome is SendOutcome.SENT
    assert await producer.cancel("orders", "m1") is CancelOutcome.CANCELLED
    _reshard(commands, 2)
    assert (await sender.send("orders", b"x", id="m2", delay=60)).outcome is SendOutcome.SENT
    report = await producer.send_many("orders", [Message(body=b"x", id=id, delay=60) for id in (*IDS, "first")])
    assert {result.id for result in report.results if result.duplicate} == {"m2", "first"}
    layout = _layout(client, prefix)
    assert sum(client.hlen(keys.of("messages")) for keys in layout.shards) == 40
    assert [len(shards) for shards in layout.former.values()] == [1, 4]


async def test_an_interrupted_reshard_is_completed(
    producers: Callable[..., Any], commands: Commands, client: redis.Redis, prefix: str
) -> None:
    """If the former shards are still open, a send to the new ones closes them first."""
    stale, fresh = producers(), producers()
    await stale.send("orders", b"x", id="first", delay=60)
    _reshard(commands, 4)
    former = _layout(client, prefix).former[0][0]
    client.delete(former.of("closed"))
    assert (await fresh.send("orders", b"x", id="m1", delay=60)).outcome is SendOutcome.SENT
    assert (await stale.send("orders", b"x", id="m1", delay=60)).outcome is SendOutcome.DUPLICATE
    assert client.exists(former.of("closed"))
    client.delete(former.of("closed"))
    async with managed(commands.url, prefix):
        await wait_until_async(lambda: client.exists(former.of("closed")))


async def test_a_reshard_that_the_server_lost_is_done_again(
    producer: Any, sender: AsyncProducer, commands: Commands, client: redis.Redis, prefix: str
) -> None:
    """A fail-over may lose it, after a producer has sent to the new shards and closed the former ones."""
    await sender.send("orders", b"x", id="first", delay=60)
    stored: Any = client.hget(topics_key(prefix), "orders")
    _reshard(commands, 4)
    await sender.send("orders", b"x", id="second", delay=60)
    client.hset(topics_key(prefix), "orders", stored)
    await sender.send("orders", b"x", id="m1", delay=60)
    with pytest.raises(LisaError, match="the registry does not say where"):
        await producer.send("orders", b"x", id="m2", delay=60)
    assert await producer.find("orders", "m1") is None
    _reshard(commands, 4)
    assert (await producer.send("orders", b"x", id="m2", delay=60)).outcome is SendOutcome.SENT
    assert (await producer.send("orders", b"x", id="m1", delay=60)).outcome is SendOutcome.DUPLICATE
    assert (await producer.find("orders", "m1")).state is State.WAITING


async def test_a_reshard_that_is_lost_on_the_way_closes_nothing(
    connection: AsyncConnection, sender: AsyncProducer, client: redis.Redis, prefix: str
) -> None:
    """The topic takes messages as before, and the operator is told."""
    await sender.send("orders", b"x", id="first", delay=60)
    stored: Any = client.hget(topics_key(prefix), "orders")

    def losing(flow: Flow[Any]) -> Flow[Any]:
        step = next(flow)
        while True:
            results = yield step
            if isinstance(step, Call) and step.script and step.script.name == "set_policy":
                client.hset(topics_key(prefix), "orders", stored)
            step = flow.send(results)

    with pytest.raises(OutcomeUnknown, match="lost the new layout of orders"):
        await connection.run(losing(reshard(prefix, "orders", 4)))
    assert not client.exists(_layout(client, prefix).shards[0].of("closed"))
    assert (await sender.send("orders", b"x", id="m1", delay=60)).outcome is SendOutcome.SENT


async def test_each_group_gets_messages_sent_right_after(
    producer: Any, consumers: Callable[..., Any], commands: Commands
) -> None:
    """Groups exist before the first message, even if their consumers learn of the new shards later."""
    await producer.send("orders", b"x", delay=60)
    for group in ("billing", "audit"):
        await consumers(group=group).read()
    _reshard(commands, 4)
    await producer.send_many("orders", [Message(body=b"x", id=id) for id in IDS])
    for group in ("billing", "audit"):
        taken = await consumers(group=group, name="new").read(limit=400)
        assert {delivery.id for delivery in taken} == set(IDS)
        assert set(await consumers(group=group, name="new").ack(*taken)) == {"acked"}


async def test_drained_shards_are_left_alone(
    producer: Any, consumers: Callable[..., Any], commands: Commands, client: redis.Redis, prefix: str
) -> None:
    """Once all their messages are done and forgotten, sends check ids there no more."""
    for id in IDS:
        await producer.send("orders", b"x", id=id)
    _reshard(commands, 4)
    consumer = consumers()
    async with managed(commands.url, prefix) as manager:
        await consumer.ack(*await consumer.read(limit=400))
        former = _layout(client, prefix).former[0][0]
        await wait_until_async(lambda: client.xlen(former.of("ready")) == 0)
        assert client.zcard(former.of("finished")) == len(IDS)
        assert _layout(client, prefix).former
        client.zadd(former.of("finished"), dict.fromkeys(IDS, 1))  # as if the dedup window had passed
        await wait_until_async(lambda: not _layout(client, prefix).former)
        await wait_until_async(lambda: former.tag not in manager._table.shards)
    assert client.exists(former.of("closed"))


def test_impossible_reshards_are_refused(commands: Commands, client: redis.Redis, prefix: str) -> None:
    """With one line, and without a change. A reshard to the same number does nothing."""
    ran = commands.manager("topic", "reshard", "orders", "--shards", "2")
    assert (ran.code, "there is no topic 'orders'" in ran.err) == (2, True)
    commands.manager("topic", "create", "orders", "--priority", "1")
    for bad in ("0", "257"):
        ran = commands.manager("topic", "reshard", "orders", "--shards", bad)
        assert (ran.code, f"; got {bad}" in ran.err) == (2, True)
    for shards in (2, 3, 4):
        _reshard(commands, shards)
    ran = commands.manager("topic", "reshard", "orders", "--shards", "5")
    assert (ran.code, "shards must be 4, as now, while 3 former layouts hold messages; got 5" in ran.err) == (2, True)
    assert commands.manager("topic", "reshard", "orders", "--shards", "4").out == "orders has 4 shards already\n"
    assert _layout(client, prefix).policy == Policy(priority=1, shards=4, former=(1, 2, 3))


@pytest.mark.slow
async def test_online_nothing_is_lost_or_doubled(
    redis_url: str, prefix: str, commands: Commands, declare: Callable[..., Policy]
) -> None:
    """Producers race for the same ids, a worker and a manager run, and the topic is resharded again and again."""
    declare(visibility_ms=2_000, dedup_window_ms=600_000)
    handled, sent, reshards = Handled(), Counter[str](), 0
    worker = new_worker(redis_url, prefix)
    worker.on("orders")(_collector(handled))
    settings = ProducerSettings(redis_url=redis_url, prefix=prefix)
    producers = [AsyncProducer(settings=settings) for _ in range(4)]
    stopping = asyncio.Event()

    async def race(producer: AsyncProducer) -> None:
        for number in itertools.count():
            if stopping.is_set():
                return
            messages = [Message(body=b"x", id=f"r{number}-{n}", delay=n / 20) for n in range(20)]
            report = await producer.send_many("orders", messages)
            sent.update(result.id for result in report.results if result.id and not result.duplicate)

    async with managed(redis_url, prefix), working(worker):
        racers = [asyncio.create_task(race(producer)) for producer in producers]
        for shards in (4, 8, 2):
            before = len(sent)
            await wait_until_async(lambda before=before: len(sent) > before + 400)
            await asyncio.to_thread(_reshard, commands, shards)
            reshards += 1
        before = len(sent)
        await wait_until_async(lambda: len(sent) > before + 400)
        stopping.set()
        await asyncio.gather(*racers)
        await wait_until_async(lambda: len(set(handled.ids)) >= len(sent), 30)
    for producer in producers:
        await producer.close()
    assert set(sent.values()) == {1}, "one producer sent each id, and the others were told of a duplicate"
    assert Counter(handled.ids) == sent, "each id was handled once"
    shards = {delivery.shard.partition(".")[2] or "0" for delivery in handled}
    assert shards >= {"0", str(reshards)}


def _collector(handled: Handled) -> Callable[[Delivery], Any]:
    async def handle(delivery: Delivery) -> None:
        handled.append(delivery)

    return handle


async def test_a_stale_registry_is_reported(producer: Any, client: redis.Redis, prefix: str) -> None:
    """A closed shard that the registry still lists is an error and no endless loop."""
    await producer.send("orders", b"x", id="m1", delay=60)
    client.set(f"{prefix}:{{orders}}:closed", 1)
    with pytest.raises(LisaError, match="the registry does not say where"):
        await producer.send("orders", b"x", id="m2", delay=60)


async def test_a_producer_that_missed_a_drop_is_served(
    producers: Callable[..., Any], commands: Commands, client: redis.Redis, prefix: str
) -> None:
    """Declared again by a program of an earlier release, the topic has one shard, and the producer closes it."""
    old, new = producers(), producers()
    commands.manager("topic", "create", "orders", "--priority", "1")
    _reshard(commands, 2)
    await old.send("orders", b"x", id="m0", delay=60)
    assert commands.manager("topic", "drop", "orders", "--force", "--yes").code == 0
    client.hset(topics_key(prefix), "orders", "{}")
    await new.send("orders", b"x", id="m1", delay=60)
    await old.send("orders", b"x", id="m2", delay=60)
    assert await old.find("orders", "m1")
    with pytest.raises(LisaError, match="the registry does not say where"):
        await new.send("orders", b"x", id="m3", delay=60)
    async with managed(commands.url, prefix):
        await wait_until_async(lambda: _layout(client, prefix).policy == Policy(shards=2, former=(1,)))
        assert (await new.send("orders", b"x", id="m3", delay=60)).outcome is SendOutcome.SENT
        for one in (new, producers()):
            assert (await one.send("orders", b"x", id="m2", delay=60)).outcome is SendOutcome.DUPLICATE
            assert (await one.send("orders", b"x", id="m1", delay=60)).outcome is SendOutcome.DUPLICATE
        await wait_until_async(lambda: not client.exists(dropped_key(prefix)))


async def test_a_topic_created_after_its_drop_has_all_former_shards(
    producer: Any, consumers: Callable[..., Any], commands: Commands, client: redis.Redis, prefix: str
) -> None:
    """Also those from before a reshard: producers that missed the drop may check ids there."""
    commands.manager("topic", "create", "orders", "--shards", "2")
    _reshard(commands, 4)
    await producer.send("orders", b"x", id="first")
    commands.manager("topic", "drop", "orders", "--force", "--yes")
    assert commands.manager("topic", "create", "orders", "--shards", "4", "--priority", "1").code == 0
    assert _layout(client, prefix).policy == Policy(shards=4, former=(2,), priority=1)
    await producer.send_many("orders", [Message(body=b"x", id=id) for id in IDS])
    assert {delivery.id for delivery in await consumers().read(limit=400)} == set(IDS)


async def test_limits_are_whole_once_former_shards_have_drained(
    prefix: str, connection: AsyncConnection, admin: AsyncAdmin
) -> None:
    """At once, so that a check finds nothing wrong."""
    await admin.create_topic("orders", max_in_flight=6, rate="60/s", max_messages=30)
    await admin.reshard("orders", 2)
    assert await connection.run(close_former(prefix, "orders")) == [1]
    assert (await admin.check("orders")).is_clean
    layout = Layout(prefix, "orders", await admin.policy("orders"))
    shares = [json.loads(await connection.call(read_limits(keys)))["in_flight"] for keys in layout.served]
    assert sum(shares) == 6


async def test_former_shards_that_have_drained_keep_no_door(
    prefix: str, connection: AsyncConnection, admin: AsyncAdmin, consumers: Callable[..., Any]
) -> None:
    """Neither one that a handler shut before, nor one that it would shut later."""
    await admin.create_topic("orders")
    former = ShardKeys(prefix, "orders")
    assert await consumers().read() == []
    await connection.call(consuming.shut_door(former, 60_000))
    assert await connection.call(command("EXISTS", former.of("door"))) == 1
    await admin.reshard("orders", 2)
    assert await connection.run(close_former(prefix, "orders")) == [1]
    await connection.call(consuming.shut_door(former, 60_000))
    assert await connection.call(command("EXISTS", former.of("door"))) == 0


async def test_sends_that_a_reshard_redirects_share_no_call_with_later_ones(producer: Any, admin: AsyncAdmin) -> None:
    """They are repeated sends, and the later ones are not. All are stored, each with its place."""
    shards, ended = (3, 5, 2), asyncio.Event()
    numbers = itertools.count()

    async def send() -> None:
        while not ended.is_set():
            number = next(numbers)
            sent = await producer.send("orders", b"x", id=f"m{number}", delay=60 if number % 2 else 0)
            assert sent.outcome is SendOutcome.SENT

    async with asyncio.TaskGroup() as group:
        for _ in range(64):
            group.create_task(send())
        for count in shards:
            before = next(numbers)
            await wait_until_async(lambda before=before: next(numbers) > before + 500)
            await admin.reshard("orders", count)
        ended.set()
    assert (await admin.check()).findings == ()
