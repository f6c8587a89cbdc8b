"""drop: a topic's keys go together, or stay together."""

import redis

from lisa_common.protocol.call import script
from support import keys_left
from support.queue import Queue


def drop(queue: Queue, *, force: bool) -> list[int]:
    """Drops the topic. Returns whether it was, and the messages it held."""
    done: list[int] = queue.connection.call(
        script("drop", queue.keys, force=int(force), scheduled=int(force), last="", revision=-1)
    )
    return done


def test_a_topic_that_holds_messages_stays(queue: Queue) -> None:
    """Unless it is forced; nothing is changed."""
    queue.send("a", due="+1000", ttl_ms=9)
    before = queue.contents()
    assert drop(queue, force=False) == [0, 1, 0]
    assert queue.contents() == before


def test_all_keys_go(queue: Queue, client: redis.Redis, prefix: str) -> None:
    """Messages, groups, failures, tombstones, schedules."""
    client.hset(queue.keys.of("schedules"), "nightly", "1 1 {}")
    queue.join("g", "h")
    for id in ("a", "b", "c"):
        queue.send(id, ttl_ms=9)
    acked, retried, _ = queue.read("g")
    queue.nack(retried)
    queue.ack(acked, *queue.read("h", limit=1))
    queue.send("w", due="+1000")
    assert drop(queue, force=True) == [1, 4, 1]
    assert keys_left(client, prefix) == []


def test_a_topic_with_schedules_stays(queue: Queue, client: redis.Redis) -> None:
    """Unless they are to go with it, whatever else does."""
    client.hset(queue.keys.of("schedules"), "nightly", "1 1 {}")
    assert drop(queue, force=False) == [0, 0, 1]
    assert queue.connection.call(script("drop", queue.keys, force=1, scheduled=0, last="", revision=-1)) == [0, 0, 1]
    assert drop(queue, force=True) == [1, 0, 1]


def test_an_empty_topic_needs_no_force(queue: Queue, client: redis.Redis, prefix: str) -> None:
    """Groups and tombstones are no messages."""
    queue.join("g")
    queue.send("a")
    queue.ack(*queue.read("g"))
    assert drop(queue, force=False) == [1, 0, 0]
    assert keys_left(client, prefix) == []


def test_what_came_since_a_look_keeps_a_topic(queue: Queue) -> None:
    """Even if it is acked by now, and with force."""
    queue.join("g")
    last = max(queue.contents().stream, default="0-0")
    queue.send("a")
    queue.ack(*queue.read("g"))
    before = queue.contents()
    for force in (0, 1):
        assert (
            queue.connection.call(script("drop", queue.keys, force=force, scheduled=0, last=last, revision=-1))[0] == 0
        )
    assert queue.contents() == before
    now = max(before.stream)
    assert queue.connection.call(script("drop", queue.keys, force=0, scheduled=0, last=now, revision=-1)) == [1, 0, 0]
