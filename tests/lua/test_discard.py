"""discard: entries that were read but must not be delivered."""

import pytest

from lisa_common.model.policy import Policy
from lisa_common.protocol.call import command
from support.queue import EPOCH_MS, Queue, outgoing


@pytest.mark.parametrize("left_ms", [1, 0])
def test_expired_at_read(queue: Queue, left_ms: int) -> None:
    """A message is delivered up to the last millisecond of its time to live, then it is garbage (promise 8)."""
    queue.join("g")
    queue.send("a", ttl_ms=100)
    queue.advance(100 - left_ms)
    delivered = queue.read("g")
    contents = queue.contents()
    assert [d.id for d in delivered] == ["a"] * left_ms
    assert contents.garbage == ({} if left_ms else {"g/a": queue.now_ms})
    if not left_ms:
        assert contents.left == ["records", "expiring", "failures", "garbage"], "a sweep tidies up expiring"
        failure = queue.failure("g/a")
        assert (failure.attempts, failure.reason, failure.due_ms) == (0, "expired", EPOCH_MS)
        assert contents.groups["g"].pending == {}


def test_dropped_at_read(queue: Queue) -> None:
    """With the policy "drop" it is forgotten, but for its dedup window."""
    queue.policy = Policy(on_expire="drop")
    queue.join("g")
    queue.send("a", ttl_ms=100)
    queue.advance(100)
    assert queue.read("g") == []
    assert queue.contents().left == ["finished"]


def test_a_retry_expires(queue: Queue) -> None:
    """An expired retry is not delivered; its garbage keeps the attempts and the last error."""
    queue.join("g")
    queue.send("a", ttl_ms=100)
    queue.nack(*queue.read("g"), error="no", delay_ms=90)
    queue.advance(90)
    queue.promote()
    queue.advance(10)
    assert queue.read("g") == []
    failure = queue.failure("g/a")
    assert (failure.attempts, failure.reason, failure.error) == (1, "expired", "no")


def test_two_groups_expire_apart(queue: Queue) -> None:
    """A message expires for the group that reads it too late; one that has it in time may finish it."""
    queue.join("g", "h")
    queue.send("a", ttl_ms=100)
    (in_time,) = queue.read("g")
    queue.advance(100)
    assert queue.read("h") == []
    contents = queue.contents()
    assert contents.garbage.keys() == {"h/a"}
    assert contents.owed == {"a": "g,h"}
    assert queue.ack(in_time) == ["acked"]
    assert queue.contents().owed == {"a": "h"}


def test_a_cancelled_record_is_met(queue: Queue) -> None:
    """A message cancelled between the two halves of a read is not delivered, and its id is free."""
    queue.join("g")
    queue.send("a")
    entries = queue.take("g")
    assert queue.cancel("a") == ["delivered"]
    assert queue.judge("g", entries) == []
    contents = queue.contents()
    assert contents.left == []
    assert contents.groups["g"].pending == {}


def test_another_groups_retry(queue: Queue) -> None:
    """A retry is passed over by other groups, and stays its group's."""
    queue.join("g", "h")
    queue.send("a")
    queue.nack(*queue.read("g"), delay_ms=0)
    queue.ack(*queue.read("h"))
    queue.promote()
    assert queue.read("h") == []
    assert queue.contents().groups["h"].pending == {}
    assert [d.attempt for d in queue.read("g")] == [2]


def test_foreign_entries_and_deleted_records(queue: Queue) -> None:
    """Entries that are none of ours, and those whose record is gone, are acked and not shown."""
    queue.join("g")
    ready = queue.keys.of("ready")
    for fields in (
        ("x", "y"),
        ("id", "a"),
        ("id", "\xff\xfe", "due", "1", "n", "1"),
        ("id", "a", "due", "?", "n", "1"),
    ):
        queue.connection.call(command("XADD", ready, "*", *fields))
    queue.connection.call(command("XADD", ready, "*", "id", b"\xff\xfe", "due", 1, "n", 1))
    queue.send_all([outgoing("gone"), outgoing("there")])
    queue.connection.call(command("HDEL", queue.keys.of("messages"), "gone"))
    assert [d.id for d in queue.read("g")] == ["there"]
    assert len(queue.connection.call(command("XPENDING", ready, "g", "-", "+", 10))) == 1


def test_an_entry_left_from_an_earlier_message(queue: Queue) -> None:
    """An entry that somebody left behind does not deliver a later message of its id early (promise 1)."""
    queue.join("g")
    queue.send("a")
    queue.connection.call(command("HDEL", queue.keys.of("messages"), "a"))
    queue.send("a", due="+500")
    assert queue.read("g") == []
    assert queue.contents().waiting == {"a": EPOCH_MS + 500}
    queue.advance(500)
    queue.promote()
    assert [d.id for d in queue.read("g")] == ["a"]


def test_what_does_not_expire_any_more_is_left_pending(queue: Queue) -> None:
    """A replay in another group lifts the time to live; a reader that did not see it loses nothing (promise 2)."""
    queue.join("g", "h")
    queue.send("a", ttl_ms=100)
    queue.nack(*queue.read("g"), rejected=True)
    entries = queue.take("h")
    queue.advance(100)
    queue.replay("g/a")
    assert queue.discard("h", entries) == 0
    assert queue.contents().groups["h"].pending.keys() == {entries[0].entry}


def test_thousand_at_once(queue: Queue) -> None:
    """1,000 expired entries in one call."""
    queue.join("g", "h")
    queue.send_all([outgoing(f"{n}", ttl_ms=5) for n in range(1_000)])
    queue.advance(5)
    assert queue.read("g") == []
    assert len(queue.contents().garbage) == 1_000
