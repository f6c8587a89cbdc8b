"""repair: steps are taken together, and only if nothing has changed since the look."""

from lisa_common.protocol.call import command
from lisa_manager.admin.audit.evidence import Evidence
from lisa_manager.admin.audit.problem import Step
from lisa_manager.admin.audit.snapshot import look, repair
from support.queue import EPOCH_MS, Queue


def mend(queue: Queue, id: str, *steps: Step) -> bool:
    """Looks, and mends."""
    looked = queue.connection.call(look(queue.keys, Evidence(id), "0-0"))
    mended: bool = queue.connection.call(repair(queue.keys, looked, steps))
    return mended


def test_ready_for_a_group_has_the_attempts_that_are_known(queue: Queue) -> None:
    """A delivery that failed counts; without one known, the next is the first."""
    queue.join("g")
    queue.send("failed")
    queue.send("fresh")
    failed, fresh = queue.read("g")
    queue.nack(failed)
    queue.connection.call(command("ZREM", queue.keys.of("retry"), "g/failed"))
    queue.connection.call(command("XACK", queue.keys.of("ready"), "g", fresh.entry.entry))
    assert mend(queue, "failed", ("ready", "g", "failed", failed.due_ms))
    assert mend(queue, "fresh", ("ready", "g", "fresh", fresh.due_ms))
    deliveries = queue.read("g")
    assert [(delivery.id, delivery.attempt) for delivery in deliveries] == [("failed", 2), ("fresh", 1)]
    assert queue.ack(*deliveries) == ["acked", "acked"]
    assert queue.contents().left == ["finished"]


def test_ready_for_a_group_to_come(queue: Queue) -> None:
    """Where there is none."""
    due = queue.send("a")
    queue.connection.call(command("XDEL", queue.keys.of("ready"), *queue.contents().stream))
    assert mend(queue, "a", ("ready", "", "a", due))
    queue.join("g")
    assert [delivery.id for delivery in queue.read("g")] == ["a"]


def test_waits_for_its_due_time(queue: Queue) -> None:
    """By its record, in its place among those that are due in the same millisecond."""
    queue.send("a", due="+10", priority=7)
    before = queue.contents()
    queue.connection.call(command("DEL", queue.keys.of("waiting")))
    assert mend(queue, "a", ("wait", "waiting", "a", ""))
    assert queue.contents() == before


def test_ready_after_the_clock_was_set_back(queue: Queue) -> None:
    """What was sent in the future is a message like any other once it is ready again."""
    queue.join("g")
    queue.catch_up()
    queue.advance(3_600_000)
    sent_ms = queue.send("a")
    queue.take("g")
    (entry,) = queue.contents().stream
    queue.connection.call(command("XACK", queue.keys.of("ready"), "g", entry))
    queue.now_ms = EPOCH_MS
    assert mend(queue, "a", ("ready", "g", "a", sent_ms))
    assert [outcome for outcome, _ in queue.nack(*queue.read("g"))] == ["retry"]


def test_every_step(queue: Queue) -> None:
    """Removals from hashes, sets and the stream, and what is set."""
    queue.join("g")
    queue.send("a")
    (delivery,) = queue.read("g")
    entry = delivery.entry.entry
    steps: list[Step] = [
        ("ack", "ready", entry, "g"),
        ("XDEL", "ready", entry, ""),
        ("HSET", "owed", "a", "h"),
        ("ZADD", "expiring", "a", 77),
    ]
    assert mend(queue, "a", *steps)
    contents = queue.contents()
    assert (contents.stream, contents.groups["g"].pending) == ({}, {})
    assert (contents.owed, contents.expiring) == ({"a": "h"}, {"a": 77})
    assert mend(queue, "a", ("HDEL", "owed", "a", ""), ("HDEL", "messages", "a", ""), ("ZREM", "expiring", "a", ""))
    assert queue.contents().left == []


def test_a_change_since_the_look_stops_it(queue: Queue) -> None:
    """No step is taken then."""
    queue.join("g")
    queue.send("a", due="+10")
    looked = queue.connection.call(look(queue.keys, Evidence("a"), "0-0"))
    queue.advance(10)
    queue.promote()
    before = queue.contents()
    assert not queue.connection.call(repair(queue.keys, looked, [("HDEL", "messages", "a", "")]))
    assert queue.contents() == before
