"""Operators' calls on a server without memory: what frees memory works, and an error says what was done."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from lisa_common.errors import OutcomeUnknown, Refused
from lisa_common.model.keys import ShardKeys, topics_key
from lisa_common.protocol.scripts import READS
from lisa_consumer import Consumer, ConsumerSettings
from lisa_manager import Admin, ManagerSettings, Operation, WaitingFilter
from lisa_producer import Message, Producer, ProducerSettings
from support import Server, wait_until

_SMALL = 1_000_000
"""Less than an empty server needs, in bytes."""


@pytest.fixture
def server(own_server: Callable[..., Server]) -> Server:
    """A server of the test's own."""
    return own_server(maxmemory_policy="noeviction")


@pytest.fixture
def client(server: Server) -> Iterator[redis.Redis]:
    """A plain client of it."""
    with server.client() as opened:
        yield opened


@pytest.fixture
def admin(server: Server, prefix: str) -> Iterator[Admin]:
    """An operator without patience."""
    with Admin(settings=ManagerSettings(redis_url=server.url, prefix=prefix), patience_s=0) as opened:
        yield opened


@pytest.fixture
def producer(server: Server, prefix: str) -> Iterator[Producer]:
    """A producer without patience."""
    with Producer(settings=ProducerSettings(redis_url=server.url, prefix=prefix, patience_s=0)) as opened:
        yield opened


def _fill(client: redis.Redis) -> None:
    client.config_set("maxmemory", _SMALL)
    with pytest.raises(redis.exceptions.OutOfMemoryError):
        client.set("x", "y")


def _send(producer: Producer, topic: str, *ids: str) -> None:
    producer.send_many(topic, [Message(body=b"x" * 100, id=id, delay=3600) for id in ids])


def test_a_topic_is_dropped(admin: Admin, producer: Producer, client: redis.Redis) -> None:
    """With its groups, former shards, limits, history and schedules; what is said is what was done."""
    admin.create_topic("orders", max_in_flight=10, expire_idle_ms=3_600_000)
    admin.create_group("orders", "g")
    admin.set_schedule("orders", "daily", every=3600)
    _send(producer, "orders", "a", "b")
    admin.reshard("orders", 3)
    _send(producer, "orders", "c")
    _fill(client)
    dropped = admin.drop_topic("orders", force=True)
    assert (dropped.done, dropped.schedules) == (True, 1)
    assert dropped.messages >= 3
    assert [topic.name for topic in admin.topics()] == []
    assert admin.list_schedules() == []


def test_a_topic_is_paused_and_goes_on(admin: Admin, producer: Producer, client: redis.Redis) -> None:
    """In the registry and in its shards."""
    admin.create_topic("orders", shards=2)
    _send(producer, "orders", "a", "b", "c")
    _fill(client)
    for paused in (True, False):
        admin.set_policy("orders", paused=paused)
        assert [status.paused for status in admin.status("orders")] == [paused]
        assert admin.check().is_clean


def test_messages_are_cancelled_and_purged(
    admin: Admin, producer: Producer, client: redis.Redis, server: Server, prefix: str
) -> None:
    """Waiting, ready, retried and dead ones, and a group with all that it owes."""
    settings = ConsumerSettings(redis_url=server.url, prefix=prefix)
    with Consumer("orders", "g", settings=settings) as consumer:
        consumer.read(wait=0)
        for id in ("dead", "retried", "ready"):
            producer.send("orders", b"x", id=id)
        taken = {delivery.id: delivery for delivery in consumer.read(2, wait=30)}
        consumer.reject(taken["dead"])
        consumer.nack(taken["retried"], delay=3600)
    _send(producer, "orders", "waiting", "many-1", "many-2")
    _fill(client)
    assert admin.purge_all("orders").done == 1
    assert admin.cancel_many("orders", WaitingFilter(id_prefix="many-")).done == 2
    assert set(admin.cancel("orders", ["waiting", "retried"]).values()) == {"cancelled"}
    assert admin.drop_group("orders", "g", force=True).ended == 1
    assert admin.sizes("orders")[0].stored == 0


def test_a_schedule_is_paused_and_deleted(admin: Admin, client: redis.Redis) -> None:
    """A schedule that fills the server can be stopped, also while the server takes none of its ticks."""
    admin.set_schedule("orders", "often", every=1)
    admin.set_schedule("orders", "deleted", every=1)
    _fill(client)
    wait_until(lambda: all(each.is_overdue for each in admin.list_schedules()))
    admin.pause_schedule("orders", "often")
    admin.delete_schedule("orders", "deleted")
    [schedule] = admin.list_schedules()
    assert schedule.schedule.paused
    admin.delete_schedule("orders", "often")
    assert admin.list_schedules() == []


def test_what_needs_memory_is_refused_and_leaves_nothing(admin: Admin, producer: Producer, client: redis.Redis) -> None:
    """Before anything is written."""
    admin.create_topic("orders")
    _send(producer, "orders", "a")
    before = admin.find("orders", "a")
    _fill(client)
    with pytest.raises(Refused):
        admin.create_group("orders", "g")
    with pytest.raises(Refused):
        admin.reshard("orders", 2)
    with pytest.raises(Refused):
        admin.reschedule("orders", ["a"], delay=1)
    assert admin.groups("orders") == []
    assert [topic.policy.shards for topic in admin.topics()] == [1]
    assert admin.find("orders", "a") == before


def test_a_drop_that_breaks_off_says_so(admin: Admin, producer: Producer, client: redis.Redis, prefix: str) -> None:
    """Messages are gone already, and the topic is still there. The same call completes the drop."""
    _send(producer, "orders", "a")
    client.hset(f"{prefix}:dropped", "orders", "x")
    client.rename(f"{prefix}:dropped", "kept")
    client.set(f"{prefix}:dropped", "of a wrong type")
    with pytest.raises(OutcomeUnknown, match="orders was dropped in part, drop it again"):
        admin.drop_topic("orders", force=True)
    assert client.hexists(topics_key(prefix), "orders")
    client.delete(f"{prefix}:dropped")
    assert admin.drop_topic("orders", force=True).done


def test_an_import_of_schedules_says_what_was_written(admin: Admin, client: redis.Redis, prefix: str) -> None:
    """The server refuses all; it has keys of another type for one topic, where one is set, or one is deleted."""
    daily = {"daily": {"every": 86_400}}
    client.config_set("min-replicas-to-write", 1)
    with pytest.raises(Refused):
        admin.import_schedules({"a": daily, "b": daily})
    client.config_set("min-replicas-to-write", 0)
    admin.set_schedule("c", "old", every=86_400)
    for topic, name in (("b", "schedules"), ("c", "waiting")):
        client.delete(ShardKeys(prefix, topic).of(name))
        client.set(ShardKeys(prefix, topic).of(name), "x")
    with pytest.raises(OutcomeUnknown, match=r"^set 1 of 2 schedules; failed for b/daily: .*WRONGTYPE"):
        admin.import_schedules({"a": daily, "b": daily}, prune=["c"])
    said = r"^set 1 of 1 schedules; deleted 0 of 1 schedules; failed for c/old: .*WRONGTYPE"
    with pytest.raises(OutcomeUnknown, match=said):
        admin.import_schedules({"a": daily}, prune=["c"])
    assert [(each.topic, each.name) for each in admin.list_schedules("a")] == [("a", "daily")]


def test_a_call_of_several_steps_says_that_a_part_was_done(
    admin: Admin, producer: Producer, client: redis.Redis
) -> None:
    """The first page of messages is done, or the first of two keys is written; then the server refuses."""
    admin.create_topic("orders")
    _send(producer, "orders", *(f"m{number}" for number in range(600)))
    with pytest.raises(OutcomeUnknown, match="a part was done"):
        admin.cancel_many(
            "orders", WaitingFilter(id_prefix="m"), on_progress=lambda *_: client.config_set("min-replicas-to-write", 1)
        )
    client.config_set("min-replicas-to-write", 0)
    assert 0 < admin.sizes("orders")[0].waiting < 600
    _fill(client)
    with pytest.raises(OutcomeUnknown, match="a part was done"):
        admin.set_schedule("orders", "daily", every=3600)
    client.config_set("maxmemory", 0)
    assert [schedule.name for schedule in admin.list_schedules("orders")] == ["daily"]
    client.config_set("min-replicas-to-write", 1)
    with pytest.raises(Refused):
        admin.set_policy("orders", paused=True)
    client.config_set("min-replicas-to-write", 0)


def test_a_call_of_plain_commands_says_that_a_part_was_done(admin: Admin, client: redis.Redis) -> None:
    """The earliest operation has made room for a new one, which the server then refuses."""
    for number in range(100):
        admin.save_operation(Operation(f"o{number}", "me", "replay", "orders", "", total=1))
    _fill(client)
    with pytest.raises(OutcomeUnknown, match="a part was done"):
        admin.save_operation(Operation("late", "me", "replay", "orders", "", total=1))
    assert len(admin.operations()) < 100


def test_what_counts_as_no_write_is_none(client: redis.Redis) -> None:
    """By the server's own list. Every other command counts as a write."""
    known: dict[str, Any] = client.command()
    # WAITAOF is of Redis 7.2.
    assert READS - {"WAITAOF"} <= {name.upper() for name in known}
    assert not READS & {name.upper() for name, command in known.items() if "write" in command["flags"]}
