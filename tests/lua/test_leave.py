"""leave: a dropped group's copies end."""

from lisa_common.call import command
from support.queue import Queue, outgoing


def drop(queue: Queue, group: str) -> None:
    """Destroys the group."""
    queue.connection.call(command("XGROUP", "DESTROY", queue.keys.of("ready"), group))


def test_what_it_had_alone_is_forgotten(queue: Queue) -> None:
    """Retry, garbage and what was out there end, with their failures, records and expiry."""
    queue.join("g")
    queue.send_all([outgoing(id, ttl_ms=9) for id in ("retried", "dead", "held", "ready")])
    retried, dead, _ = queue.read("g", limit=3)
    queue.nack(retried)
    queue.nack(dead, rejected=True)
    drop(queue, "g")
    assert queue.leave("g", "retried", "dead", "held", "ready") == 4
    assert queue.contents().left == []


def test_other_groups_keep_theirs(queue: Queue) -> None:
    """A message that another group owes lives on, for that group."""
    queue.join("g", "h")
    queue.send("a")
    queue.nack(*queue.read("g"))
    drop(queue, "g")
    assert queue.leave("g", "a") == 1
    contents = queue.contents()
    assert contents.left == ["records", "owed"]
    assert contents.owed == {"a": "h"}
    assert queue.ack(*queue.read("h")) == ["acked"]


def test_thousand_at_once(queue: Queue) -> None:
    """1,000 messages in one call."""
    queue.join("g", "h")
    queue.send_all([outgoing(f"{n}") for n in range(1_000)])
    drop(queue, "g")
    assert queue.leave("g", *(f"{n}" for n in range(1_000))) == 1_000
    assert set(queue.contents().owed.values()) == {"h"}
