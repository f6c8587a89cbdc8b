"""close_shard: a shard takes no new messages any more, and says what it knows."""

import pytest

from lisa_common.errors import Resharded
from lisa_common.model.policy import Policy
from lisa_common.model.sharding import Layout
from lisa_common.protocol.call import command
from lisa_common.protocol.producing import close_shard
from support.queue import Queue


def known(queue: Queue, *ids: str) -> list[bool]:
    """Closes the shard and asks for ids."""
    return queue.connection.call(close_shard(Layout("", "orders"), queue.keys, ids, now_ms=queue.now_ms))


def test_it_says_where_new_messages_go(queue: Queue) -> None:
    """By the numbers of shards of all layouts; the latest call counts."""
    for policy, stored in ((Policy(), b"1"), (Policy(shards=4, former=(1, 2)), b"1,2,4")):
        queue.connection.call(close_shard(Layout("", "orders", policy), queue.keys))
        assert queue.connection.call(command("GET", queue.keys.of("closed"))) == stored


def test_nothing_new_is_taken(queue: Queue) -> None:
    """Neither later nor now, and nothing is written."""
    assert known(queue) == []
    for due in ("+0", "+1000"):
        with pytest.raises(Resharded, match="new messages of orders go to other shards"):
            queue.send("a", due=due, ttl_ms=5)
    assert queue.contents().left == []


def test_what_is_alive_or_remembered_is_known(queue: Queue) -> None:
    """Waiting, ready, delivered, and acked within the dedup window; not what was forgotten."""
    queue.join("g")
    queue.send("w", due="+1000")
    queue.send("acked")
    queue.ack(*queue.read("g"))
    queue.send("delivered")
    queue.read("g")
    queue.send("ready")
    ids = ("w", "acked", "delivered", "ready", "nobody")
    assert known(queue, *ids) == [True, True, True, True, False]
    queue.advance(300_001)
    assert known(queue, *ids) == [True, False, True, True, False]


def test_what_is_there_lives_on(queue: Queue) -> None:
    """It is promoted, retried, cancelled and replayed where it is."""
    queue.join("g")
    for id in ("a", "b", "c"):
        queue.send(id, due="+10")
    known(queue)
    queue.advance(10)
    assert queue.promote().count == 3
    first, second, third = queue.read("g")
    queue.nack(first, delay_ms=5)
    queue.nack(second, rejected=True)
    assert queue.cancel("c") == ["delivered"]
    queue.ack(third)
    queue.replay("g/b")
    queue.advance(5)
    queue.promote()
    assert sorted(delivery.id for delivery in queue.read("g")) == ["a", "b"]
