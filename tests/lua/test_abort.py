"""abort: what consumers have of a message becomes garbage; nothing else changes."""

import pytest

from lisa_common.protocol.marking import StartMark
from support.queue import Queue


def test_a_delivery_becomes_garbage(queue: Queue) -> None:
    """With the reason, its attempt, and nothing pending; what its consumer does later changes nothing."""
    queue.join("g")
    queue.send("a")
    [delivery] = queue.read("g")
    assert queue.abort("a") == "aborted"
    failure = queue.failure("g/a")
    assert (failure.reason, failure.attempts, failure.entry) == ("aborted", 1, delivery.entry.entry)
    contents = queue.contents()
    assert contents.garbage == {"g/a": queue.now_ms}
    assert contents.groups["g"].pending == {}
    assert queue.abort("a") == "garbage"
    assert queue.nack(delivery)[0][0] == "stale"
    assert queue.release(delivery) == 0
    assert queue.ack(delivery) == ["stale"]
    assert queue.contents().garbage.keys() == {"g/a"}


def test_attempts_go_on_counting(queue: Queue) -> None:
    """A retry that is aborted has spent its attempt, too; a replay delivers it again."""
    queue.join("g")
    queue.send("a")
    queue.nack(*queue.read("g"), delay_ms=0)
    queue.promote()
    [delivery] = queue.read("g")
    assert queue.abort("a") == "aborted"
    assert queue.failure("g/a").attempts == delivery.attempt == 2
    queue.replay("g/a")
    assert [again.attempt for again in queue.read("g")] == [1]


def test_of_each_group_that_has_it(queue: Queue) -> None:
    """Other groups get theirs."""
    queue.join("g", "h", "i")
    queue.send("a")
    queue.read("g")
    queue.read("h")
    assert queue.abort("a") == "aborted"
    assert queue.contents().garbage.keys() == {"g/a", "h/a"}
    assert [delivery.id for delivery in queue.read("i")] == ["a"]


@pytest.mark.parametrize("state", ["waiting", "ready", "retry", "no group"])
def test_nothing_changes_where_no_consumer_has_it(queue: Queue, state: str) -> None:
    """It is idle."""
    if state != "no group":
        queue.join("g")
    queue.send("a", due="+5" if state == "waiting" else "+0")
    if state == "retry":
        queue.nack(*queue.read("g"))
    before = queue.contents()
    assert queue.abort("a") == "idle"
    assert queue.contents() == before


def test_of_what_has_ended(queue: Queue) -> None:
    """Dead, cancelled, acked and unknown messages stay as they are."""
    queue.join("g")
    for id in ("dead", "cancelled", "acked"):
        queue.send(id)
    dead, _, acked = queue.read("g")
    queue.nack(dead, rejected=True)
    queue.cancel("cancelled")
    queue.ack(acked)
    before = queue.contents()
    assert [queue.abort(id) for id in ("dead", "cancelled", "acked", "none")] == [
        *("garbage", "cancelled", "finished", "unknown")
    ]
    assert queue.contents() == before


def test_a_slot_of_its_key_passes_on(queue: Queue) -> None:
    """The next message of the key becomes ready."""
    queue.join("g")
    queue.limit(max_in_flight_per_key=1)
    queue.send("a", key="k")
    queue.send("b", key="k")
    queue.promote()
    assert [delivery.id for delivery in queue.read("g")] == ["a"]
    assert queue.abort("a") == "aborted"
    queue.promote()
    assert [delivery.id for delivery in queue.read("g")] == ["b"]


def test_a_worker_that_dies_later_is_charged_for_what_had_begun(queue: Queue) -> None:
    """The mark of an aborted delivery passes on to the one before it."""
    queue.join("g")
    for id in ("a", "b"):
        queue.send(id)
    _, second = queue.read("g", "worker~")
    queue.mark(StartMark.YES, second, consumer="worker~")
    assert queue.abort("b") == "aborted"
    queue.advance(queue.policy.visibility_ms + 1)
    reclaimed = queue.reclaim("g")
    assert (reclaimed.retry, reclaimed.released) == (1, 0)
