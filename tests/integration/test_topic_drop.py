"""What a drop of a topic leaves, whatever happens between two of its steps."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import permutations
from typing import Any

import pytest
import redis

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.client.connection import Connection
from lisa_common.errors import OutcomeUnknown, Refused, UnknownTopic
from lisa_common.model.keys import ShardKeys, dropped_key, topics_key
from lisa_common.model.policy import Policy
from lisa_common.model.sharding import Layout
from lisa_common.protocol.call import Call, Flow, IndependentCalls
from lisa_common.protocol.registry import read_mark
from lisa_consumer import Consumer, ConsumerSettings
from lisa_manager import Admin, AsyncAdmin, ManagerSettings
from lisa_manager.admin.topics.policies import set_policy
from lisa_manager.jobs import discoverer as discovering
from lisa_manager.jobs.discoverer import Discoverer
from lisa_manager.jobs.idle_expirer import IdleExpirer
from lisa_manager.resharding import close_former, reshard
from lisa_manager.shard_table import ShardTable
from lisa_manager.topic_drop import drop_topic
from lisa_manager.topic_use import TopicUse
from lisa_producer import Message, Producer, ProducerSettings
from support import keys_left, remove_keys
from support.stepping import Stepped, interrupted


@pytest.fixture
def admin(redis_url: str, prefix: str) -> Iterator[Admin]:
    """An operator."""
    with Admin(settings=ManagerSettings(redis_url=redis_url, prefix=prefix)) as opened:
        yield opened


@pytest.fixture
def producer(redis_url: str, prefix: str) -> Iterator[Producer]:
    """A blocking producer."""
    with Producer(settings=ProducerSettings(redis_url=redis_url, prefix=prefix)) as opened:
        yield opened


@pytest.fixture
def stepping(redis_url: str) -> Iterator[Connection]:
    """A connection to drive flows over."""
    with Connection(redis_url, name="test") as opened:
        yield opened


def _registered(client: redis.Redis, prefix: str) -> bool:
    return bool(client.hexists(topics_key(prefix), "orders"))


@pytest.mark.parametrize("field", ["limits", "shut"])
def test_the_door_of_a_drained_shard_goes(
    admin: Admin, stepping: Connection, client: redis.Redis, prefix: str, field: str
) -> None:
    """A manager has died as it drained the shard, or a handler had shut it."""
    admin.create_topic("orders", shards=2, paused=True)
    admin.reshard("orders", 3)
    drain = Stepped(stepping, close_former(prefix, "orders"))
    while not admin.policy("orders").drained:
        assert drain.step()
    drained = ShardKeys(prefix, "orders", "0")
    assert client.hexists(drained.of("door"), "limits")
    if field == "shut":
        drain.finish()
        client.hset(drained.of("door"), "shut", 10**14)
    admin.drop_topic("orders")
    assert keys_left(client, prefix) == [dropped_key(prefix)]


def test_limits_of_a_change_that_was_broken_off_go(
    admin: Admin, stepping: Connection, client: redis.Redis, prefix: str
) -> None:
    """The shard has limits of an earlier revision, or what another program has written."""
    for stored in (None, b"\xff", b'{"revision":"x"}', b"7"):
        admin.create_topic("orders", paused=True)
        change = Stepped(stepping, set_policy(prefix, "orders", {"paused": False}))
        while admin.policy("orders").paused:
            assert change.step()
        if stored is not None:
            client.hset(ShardKeys(prefix, "orders").of("door"), "limits", stored)
        assert client.exists(ShardKeys(prefix, "orders").of("door"))
        admin.drop_topic("orders")
        assert keys_left(client, prefix) == [dropped_key(prefix)]


async def test_limits_of_a_drop_that_was_broken_off_go(
    *,
    admin: Admin,
    stepping: Connection,
    connection: AsyncConnection,
    client: redis.Redis,
    prefix: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between the registry and the shards: a manager removes them when it forgets the drop."""
    admin.create_topic("orders", paused=True, shards=2)
    drop = Stepped(stepping, drop_topic(prefix, "orders", force=False))
    while _registered(client, prefix):
        assert drop.step()
    monkeypatch.setattr(discovering, "_GRACE_MS", 0)
    await Discoverer(connection, ShardTable(prefix, fallback_s=60)).turn()
    assert keys_left(client, prefix) == []


async def test_a_reshard_that_ends_after_the_drop_brings_nothing_back(
    *,
    admin: Admin,
    stepping: Connection,
    connection: AsyncConnection,
    client: redis.Redis,
    prefix: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It closes the former shards of a topic that is gone. A manager forgets that with the drop."""
    admin.create_topic("orders")
    change = interrupted(reshard(prefix, "orders", 2), "close_shard", lambda: admin.drop_topic("orders"))
    Stepped(stepping, change).finish()
    assert client.exists(ShardKeys(prefix, "orders").of("closed"))
    monkeypatch.setattr(discovering, "_GRACE_MS", 0)
    await Discoverer(connection, ShardTable(prefix, fallback_s=60)).turn()
    assert keys_left(client, prefix) == []


@pytest.mark.parametrize("script", ["drop", "mark_drop"])
def test_an_operator_that_was_suspended_forgets_no_drop_of_others(
    admin: Admin, stepping: Connection, client: redis.Redis, prefix: str, script: str
) -> None:
    """While it drops a topic, others reshard and drop it: producers may still send to the shards that they made."""

    def meanwhile() -> None:
        admin.reshard("orders", 2)
        admin.drop_topic("orders", force=True)

    admin.create_topic("orders")
    with pytest.raises(OutcomeUnknown):
        Stepped(stepping, interrupted(drop_topic(prefix, "orders", force=True), script, meanwhile)).finish()
    mark: Any = client.hget(dropped_key(prefix), "orders")
    _, layout = read_mark(prefix, "orders", mark)
    assert layout.counts == (1, 2)


def test_limits_that_the_former_shards_cannot_have_hold_up_no_drop(
    admin: Admin, producer: Producer, client: redis.Redis, prefix: str
) -> None:
    """The first drop left a mark of four shards; the topic was declared again with one, as its limits allow no more."""
    admin.create_topic("orders")
    admin.reshard("orders", 4)
    admin.drop_topic("orders")
    admin.set_pattern_policy("orders", {"max_in_flight_per_key": 1, "ttl_ms": 5_000})
    producer.send("orders", b"x", delay=60)
    assert admin.drop_topic("orders", force=True).messages == 1
    mark: Any = client.hget(dropped_key(prefix), "orders")
    _, layout = read_mark(prefix, "orders", mark)
    assert (layout.counts, layout.policy.max_in_flight_per_key, layout.policy.ttl_ms) == ((1, 4), None, 5_000)


@pytest.mark.parametrize("order", set(permutations([True, True, True, False, False, False])))
def test_a_topic_that_two_operators_drop_at_once_has_a_mark(
    admin: Admin, stepping: Connection, client: redis.Redis, prefix: str, order: Sequence[bool]
) -> None:
    """Both have read that there is none before either writes it. Without one, managers would leave its shards."""
    admin.create_topic("orders")
    drops = [Stepped(stepping, drop_topic(prefix, "orders", force=False)) for _ in range(2)]
    for drop in drops:
        while not drop.is_next("mark_drop"):
            assert drop.step()
    with suppress(UnknownTopic):
        for is_first in order:
            drops[not is_first].step()
    for drop in drops:
        with suppress(UnknownTopic):
            drop.finish()
    assert not _registered(client, prefix)
    assert client.hexists(dropped_key(prefix), "orders")


async def test_a_manager_that_sees_both_topic_and_mark_forgets_no_drop(
    admin: Admin, stepping: Connection, connection: AsyncConnection, client: redis.Redis, prefix: str
) -> None:
    """It takes the topic for one that was declared again."""
    admin.create_topic("orders")
    drop = Stepped(stepping, drop_topic(prefix, "orders", force=False))
    while not drop.is_next("set_policy"):
        assert drop.step()
    await Discoverer(connection, ShardTable(prefix, fallback_s=60)).turn()
    assert drop.finish().done
    assert client.hexists(dropped_key(prefix), "orders")


async def test_a_manager_that_saw_the_topic_before_its_drop_forgets_no_drop(
    *,
    admin: Admin,
    connection: AsyncConnection,
    client: redis.Redis,
    prefix: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The drop comes between its two looks, at the registry and at the marks."""
    admin.create_topic("orders")
    read_dropped = discovering.read_dropped

    def read_after_the_drop(prefix: str) -> Flow[dict[str, bytes]]:
        admin.drop_topic("orders")
        return (yield from read_dropped(prefix))

    monkeypatch.setattr(discovering, "read_dropped", read_after_the_drop)
    await Discoverer(connection, ShardTable(prefix, fallback_s=60)).turn()
    assert client.hexists(dropped_key(prefix), "orders")


@pytest.mark.parametrize("step", ["read_dropped", "end_limits"])
async def test_a_manager_that_was_suspended_opens_no_shard_of_a_topic_that_was_made_again(
    *,
    admin: Admin,
    connection: AsyncConnection,
    client: redis.Redis,
    prefix: str,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
) -> None:
    """Once it is resharded, its first shard takes no message: managers may serve it no more."""
    admin.create_topic("orders")
    admin.drop_topic("orders")
    before = getattr(discovering, step)

    def meanwhile(given: Any) -> Flow[Any]:
        admin.create_topic("orders")
        admin.reshard("orders", 2)
        return (yield from before(given))

    monkeypatch.setattr(discovering, step, meanwhile)
    monkeypatch.setattr(discovering, "_GRACE_MS", 0)
    await Discoverer(connection, ShardTable(prefix, fallback_s=60)).turn()
    assert client.exists(ShardKeys(prefix, "orders").of("closed"))


def test_limits_end_where_a_message_comes_during_a_drop(
    admin: Admin, producer: Producer, stepping: Connection, client: redis.Redis, prefix: str
) -> None:
    """The producer does not know of the drop yet. The message stays, and is not held back for ever."""
    admin.create_topic("orders", paused=True)
    deed = lambda: producer.send("orders", b"x", id="m")  # noqa: E731 - as short as what it does
    assert stepping.run(interrupted(drop_topic(prefix, "orders", force=False), "set_policy", deed)).done
    assert not client.exists(ShardKeys(prefix, "orders").of("door"))
    assert producer.find("orders", "m") is not None


def test_a_message_that_comes_during_a_drop_changes_no_shard_of_others(
    *, admin: Admin, producer: Producer, stepping: Connection, client: redis.Redis, redis_url: str, prefix: str
) -> None:
    """Between whichever of its steps: the topic stays as it was, or the shard of the message does."""
    refused = steps = 0
    settings = ConsumerSettings(redis_url=redis_url, prefix=prefix)
    while True:
        admin.create_topic("orders", shards=2, dedup_window_ms=60_000)
        layout = Layout(prefix, "orders", admin.policy("orders"))
        known = [next(id for id in map(str, range(99)) if layout.home(id) == keys) for keys in layout.shards]
        with Consumer("orders", "billing", settings=settings) as consumer:
            consumer.read()
            for id in known:
                producer.send("orders", b"x", id=id)
                consumer.ack(*consumer.read(wait=30))
        drop = Stepped(stepping, drop_topic(prefix, "orders", force=False))
        if not all(drop.step() for _ in range(steps)):
            break
        is_registered = _registered(client, prefix)
        producer.send("orders", b"x", id="m", delay=60)
        if drop.finish().done:
            assert not is_registered or client.xinfo_groups(layout.home("m").of("ready"))
            assert producer.find("orders", "m") is not None
        else:
            refused += 1
            assert [len(client.xinfo_groups(keys.of("ready"))) for keys in layout.shards] == [1, 1]
            assert all(producer.send("orders", b"x", id=id).duplicate for id in known)
        remove_keys(client, prefix)
        steps += 1
    assert refused > 2


def test_shards_that_a_topic_declared_anew_has_not_go(
    admin: Admin, producer: Producer, stepping: Connection, client: redis.Redis, prefix: str
) -> None:
    """A producer declares it with one shard, before the former ones are gone."""
    admin.create_topic("orders", paused=True, shards=3)
    drop = Stepped(stepping, drop_topic(prefix, "orders", force=False))
    while _registered(client, prefix):
        assert drop.step()
    producer.send("orders", b"x", id="m")
    assert drop.finish().done
    assert [key for key in keys_left(client, prefix) if key.endswith(":door")] == []
    assert producer.find("orders", "m") is not None


def test_a_reshard_of_a_topic_that_is_dropped_meanwhile_leaves_nothing(
    admin: Admin, stepping: Connection, client: redis.Redis, prefix: str
) -> None:
    """Between whichever of its steps: neither limits nor streams of the new shards."""
    refused = steps = 0
    while True:
        admin.create_topic("orders", paused=True, rate="9/s")
        admin.create_group("orders", "billing")
        change = Stepped(stepping, reshard(prefix, "orders", 2))
        if not all(change.step() for _ in range(steps)):
            break
        admin.drop_topic("orders")
        try:
            change.finish()
        except (UnknownTopic, OutcomeUnknown):
            refused += 1
        left = [key for key in keys_left(client, prefix) if not key.endswith((":closed", ":dropped"))]
        assert left == [], steps
        remove_keys(client, prefix)
        steps += 1
    assert refused > 3


@pytest.mark.parametrize("change", [{"paused": True}, {"expire_idle_ms": 60_000}])
async def test_a_topic_that_changes_while_it_expires_stays(
    connection: AsyncConnection, redis_url: str, prefix: str, change: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pause would be gone with it, after it has returned."""
    settings = ManagerSettings(redis_url=redis_url, prefix=prefix, housekeeping_s=0.05)
    drop = IdleExpirer._drop
    changed = asyncio.Event()

    async with AsyncAdmin(settings=settings) as operator:

        async def drop_later(expirer: IdleExpirer, layout: Layout, use: TopicUse, unused_ms: int) -> None:
            await operator.set_policy("orders", **change)
            changed.set()
            await drop(expirer, layout, use, unused_ms)

        monkeypatch.setattr(IdleExpirer, "_drop", drop_later)
        await operator.create_topic("orders", expire_idle_ms=1)
        discoverer = Discoverer(connection, ShardTable(prefix, fallback_s=60))
        await discoverer.turn()
        expirer = IdleExpirer(connection, discoverer, settings)
        while not changed.is_set():
            await expirer.turn()
            expirer._due["orders"] = 0.0
        policy = await operator.policy("orders")
        assert {name: getattr(policy, name) for name in change} == change


def _drive_in_part(flow: Flow[Any], connection: Connection) -> None:
    """Of independent calls of a script only the first is carried out."""
    step: Any = next(flow)
    while True:
        if isinstance(step, IndependentCalls) and step[0].script:
            step = flow.send([connection.call(step[0]), Refused("the slot moves")])
        elif isinstance(step, Call):
            step = flow.send(connection.call(step))
        else:
            step = flow.send(connection.execute(list(step)))


def test_a_drop_that_one_shard_refuses_is_done_in_part(
    admin: Admin, producer: Producer, stepping: Connection, client: redis.Redis, prefix: str
) -> None:
    """As where a slot of a Cluster moves: it says so, and another drop completes it."""
    admin.create_topic("orders", shards=2)
    producer.send_many("orders", [Message(body="x", delay=60) for _ in range(20)])
    with pytest.raises(OutcomeUnknown, match="orders was dropped in part, drop it again: the slot moves"):
        _drive_in_part(drop_topic(prefix, "orders", force=True), stepping)
    assert _registered(client, prefix)
    assert admin.drop_topic("orders", force=True).done
    assert keys_left(client, prefix) == [dropped_key(prefix)]


def test_a_send_soon_after_a_drop_takes_the_shards_that_the_topic_had(
    admin: Admin, producer: Producer, client: redis.Redis, redis_url: str, prefix: str
) -> None:
    """A producer from before the drop still sends to them, and closes former ones; no manager runs."""
    admin.create_topic("orders")
    admin.reshard("orders", 4)
    producer.send("orders", b"x", id="m0", delay=60)
    admin.drop_topic("orders", force=True)
    with Producer(settings=ProducerSettings(redis_url=redis_url, prefix=prefix)) as late:
        for number, each in enumerate((late, producer, late)):
            assert each.send("orders", b"x", id=f"m{number}", delay=60).outcome == "sent"
    stored: Any = client.hget(topics_key(prefix), "orders")
    assert Policy.load(stored) == Policy(shards=4, former=(1,))
    assert [sizes.waiting for sizes in admin.sizes()] == [3]


def test_a_send_soon_after_a_drop_is_never_refused_for_the_shards_that_the_topic_had(
    admin: Admin, producer: Producer
) -> None:
    """They went with a limit of the dropped topic's own. Patterns give the new one less than a message for each."""
    admin.set_pattern_policy("orders", {"max_in_flight": 2})
    admin.create_topic("orders", shards=4, max_in_flight=8)
    admin.drop_topic("orders")
    assert producer.send("orders", b"x", delay=60).outcome == "sent"
    assert admin.policy("orders").shards == 1


def test_groups_that_join_a_dropped_topic_miss_no_message_of_the_next(
    admin: Admin, producer: Producer, redis_url: str, prefix: str
) -> None:
    """Who declares it again gives it the shards that it had: so the groups are made there."""
    admin.create_topic("orders", shards=2)
    admin.drop_topic("orders")
    settings = ConsumerSettings(redis_url=redis_url, prefix=prefix)
    groups = [Consumer("orders", group, settings=settings) for group in ("billing", "mail")]
    with groups[0] as billing, groups[1] as mail:
        assert billing.read() == mail.read() == []
        producer.send_many("orders", [Message(body=b"x", id=f"m{number}") for number in range(8)])
        assert len(billing.read()) == len(mail.read()) == 8
