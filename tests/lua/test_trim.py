"""trim: what every group has acked leaves the stream."""

from lisa_common.protocol.call import command
from lisa_common.protocol.managing import Trimmed
from support.queue import Queue, outgoing


def consumers(queue: Queue, group: str) -> list[str]:
    """The consumers of a group."""
    infos: list[list[bytes]] = queue.connection.call(command("XINFO", "CONSUMERS", queue.keys.of("ready"), group))
    return [info[1].decode() for info in infos]


def test_without_stream_or_group(queue: Queue) -> None:
    """Without a group nothing was acked, so nothing goes."""
    assert queue.trim() == Trimmed(0, 0, 0, {})
    queue.send("a")
    assert queue.trim() == Trimmed(0, 0, 1, {})


def test_acked_entries_go(queue: Queue) -> None:
    """Up to the first entry that is pending; what is unread stays."""
    queue.join("g")
    queue.send_all([outgoing(id) for id in ("a", "b", "c", "d")])
    a, b, c = queue.read("g", limit=3)
    queue.ack(a, c)
    assert queue.trim() == Trimmed(1, 0, 3, {"g": 1})
    assert queue.contents().ready_ids == ["b", "c", "d"]
    queue.ack(b)
    assert queue.trim() == Trimmed(2, 0, 1, {"g": 0})
    assert queue.contents().ready_ids == ["d"]
    queue.ack(*queue.read("g"))
    assert queue.trim() == Trimmed(1, 0, 0, {"g": 0})


def test_the_slowest_group_decides(queue: Queue) -> None:
    """Nothing goes that a group has not read, or has not acked."""
    queue.join("g", "h")
    queue.send_all([outgoing("a"), outgoing("b")])
    queue.ack(*queue.read("g"))
    assert queue.trim() == Trimmed(0, 0, 2, {"g": 0, "h": 0})
    a, b = queue.read("h")
    queue.ack(b)
    assert queue.trim() == Trimmed(0, 0, 2, {"g": 0, "h": 1})
    queue.ack(a)
    assert queue.trim() == Trimmed(2, 0, 0, {"g": 0, "h": 0})


def test_unread_entries_with_small_and_large_numbers(queue: Queue) -> None:
    """Entry ids are compared as numbers: 9-0 comes before 10-0, and 5-9 before 5-10."""
    ready = queue.keys.of("ready")
    queue.join("g", "h")
    for entry in ("5-9", "5-10", "9-0", "10-0"):
        queue.connection.call(command("XADD", ready, entry, "x", "y"))
    queue.discard("g", queue.take("g", limit=4))
    queue.discard("h", queue.take("h", limit=1))
    assert queue.trim().entries == 1
    queue.discard("h", queue.take("h", limit=2))
    assert queue.trim().entries == 2
    assert list(queue.contents().stream) == ["10-0"]


def test_a_promoted_retry_stays(queue: Queue) -> None:
    """The entry of a retry stays until its group has settled it, though others passed over it."""
    queue.join("g", "h")
    queue.send("a")
    queue.nack(*queue.read("g"), delay_ms=0)
    queue.ack(*queue.read("h"))
    queue.promote()
    assert queue.read("h") == []
    assert queue.trim().entries == 1
    assert [d.attempt for d in queue.read("g")] == [2]


def test_spent_consumers_go(queue: Queue) -> None:
    """A consumer that has been away for long goes, unless something is pending on it."""
    queue.join("g")
    queue.send_all([outgoing("a"), outgoing("b")])
    (a,) = queue.read("g", "done", limit=1)
    queue.read("g", "busy", limit=1)
    queue.ack(a)
    assert queue.trim(spent_ms=3_600_000).consumers == 0
    assert queue.trim(spent_ms=-1).consumers == 1
    assert consumers(queue, "g") == ["busy"]


def test_many(queue: Queue) -> None:
    """Thousands of entries in one call."""
    queue.join("g")
    for start in range(0, 3_000, 1_000):
        queue.send_all([outgoing(f"{n}") for n in range(start, start + 1_000)])
        queue.ack(*queue.read("g"))
    assert queue.trim() == Trimmed(3_000, 0, 0, {"g": 0})
