"""deregister, and how a consumer shows that it is alive: the consumers of a group are those that are alive."""

import pytest
import redis

from lisa_common.errors import NoGroup
from lisa_common.protocol import consuming
from support import idle, wait_until
from support.queue import Queue


def _idle_ms(client: redis.Redis, queue: Queue) -> dict[str, int]:
    return {info["name"].decode(): info["idle"] for info in client.xinfo_consumers(queue.keys.of("ready"), "g")}


def _attend(queue: Queue, name: str = "worker~") -> None:
    queue.connection.call(consuming.attend([queue.keys], "g", name))


def _deregister(queue: Queue, name: str = "worker~") -> bool:
    return queue.connection.call(consuming.deregister(queue.keys, "g", name))


def test_a_consumer_registers_without_a_message(queue: Queue, client: redis.Redis) -> None:
    """Redis 7.0 knows a consumer from its first entry on."""
    queue.join("g")
    _attend(queue)
    assert list(_idle_ms(client, queue)) == ["worker~"]


def test_attending_starts_the_idle_time_again(queue: Queue, client: redis.Redis) -> None:
    """That of a consumer which holds something, and whose lease this must not renew."""
    queue.join("g")
    queue.send("a")
    queue.read("g", "worker~")
    pending = queue.keys.of("ready"), "g", "-", "+", 1
    since = client.xpending_range(*pending)[0]["time_since_delivered"]
    wait_until(lambda: client.xpending_range(*pending)[0]["time_since_delivered"] > since + 50)
    before = _idle_ms(client, queue)["worker~"]
    _attend(queue)
    assert _idle_ms(client, queue)["worker~"] < min(before, 50)
    [entry] = client.xpending_range(*pending)
    assert entry["time_since_delivered"] > since + 50
    assert entry["times_delivered"] == 1


def test_a_consumer_deregisters_when_it_holds_nothing(queue: Queue, client: redis.Redis) -> None:
    """What it holds is not lost to the group."""
    queue.join("g")
    queue.send("a")
    [delivery] = queue.read("g", "worker~")
    assert not _deregister(queue)
    assert list(_idle_ms(client, queue)) == ["worker~"]
    queue.ack(delivery)
    assert _deregister(queue)
    assert _idle_ms(client, queue) == {}
    assert _deregister(queue), "again: a lost reply"


def test_without_a_group(queue: Queue) -> None:
    """A dropped group stays dropped."""
    for call in (_attend, _deregister):
        with pytest.raises(NoGroup):
            call(queue)
    queue.send("a")
    for call in (_attend, _deregister):
        with pytest.raises(NoGroup):
            call(queue)


def test_silent_workers_go_before_plain_consumers(queue: Queue, client: redis.Redis) -> None:
    """A worker that was killed is no live one; a plain consumer may pause as long as it likes."""
    queue.join("g")
    for name in ("worker~", "plain"):
        _attend(queue, name)
    idle(0.02)
    assert queue.trim(silent_ms=10_000).consumers == 0
    assert queue.trim(silent_ms=10).consumers == 1
    assert list(_idle_ms(client, queue)) == ["plain"]
