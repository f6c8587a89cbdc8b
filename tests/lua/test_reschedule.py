"""reschedule: another due time for what waits."""

from collections.abc import Callable

import pytest

from lisa_common.errors import OutcomeUnknown
from lisa_common.model.record import unpack_record
from support.queue import EPOCH_MS, STEADY, Queue, outgoing


def test_waiting(queue: Queue) -> None:
    """A waiting message gets its new due time in record and place; its time to live counts from there."""
    queue.send("a", due="+500", ttl_ms=100, priority=64, max_retries=3, body=b"body", headers={"k": "v"})
    queue.advance(10)
    assert queue.reschedule(("a", "+1000")) == [("rescheduled", EPOCH_MS + 1_010)]
    contents = queue.contents()
    assert contents.waiting == {"a": EPOCH_MS + 1_010 - 0.25}
    assert contents.expiring == {"a": EPOCH_MS + 1_110}
    record = unpack_record(contents.records["a"])
    assert (record.due_ms, record.sent_ms, record.ttl_ms) == (EPOCH_MS + 1_010, EPOCH_MS, 100)
    assert (record.body, record.headers, record.max_retries) == (b"body", {"k": "v"}, 3)


def test_of_another_time(queue: Queue) -> None:
    """A message of another time than the one that is meant is left alone."""
    queue.send("a", due="+5")
    with pytest.raises(OutcomeUnknown):
        queue.reschedule(("a", "+50"), sent_ms=EPOCH_MS - 1)
    assert queue.contents().waiting == {"a": EPOCH_MS + 5}
    assert queue.reschedule(("a", "+50"), sent_ms=EPOCH_MS) == [("rescheduled", EPOCH_MS + 50)]
    assert queue.reschedule(("b", "+50"), sent_ms=EPOCH_MS) == [("unknown", 0)]


def test_not_early_not_late(queue: Queue) -> None:
    """The new due time holds to the millisecond, later or earlier than the old one (promise 1)."""
    queue.join("g")
    queue.send_all([outgoing("later", due="+100"), outgoing("earlier", due="+100")])
    queue.reschedule(("later", "+200"), ("earlier", str(EPOCH_MS + 50)))
    delivered = {}
    for ms in (49, 50, 199, 200):
        queue.now_ms = EPOCH_MS + ms
        queue.promote()
        for delivery in queue.read("g"):
            delivered[delivery.id] = ms, delivery.due_ms - EPOCH_MS
    assert delivered == {"earlier": (50, 50), "later": (200, 200)}


def test_retry(queue: Queue) -> None:
    """A retry gets a new due time in every group that retries; its time to live is not renewed."""
    queue.join("g", "h")
    queue.send("a", ttl_ms=5_000, priority=128)
    queue.nack(*queue.read("g"))
    queue.nack(*queue.read("h"))
    assert queue.reschedule(("a", "+9")) == [("rescheduled", EPOCH_MS + 9)]
    contents = queue.contents()
    assert contents.retry == {"g/a": EPOCH_MS + 8.5, "h/a": EPOCH_MS + 8.5}
    assert contents.expiring == {"a": EPOCH_MS + 5_000}
    assert unpack_record(contents.records["a"]).due_ms == EPOCH_MS


def test_after_the_clock_was_set_back(queue: Queue) -> None:
    """What was sent in the future is a message like any other once it is due in the present."""
    queue.join("g")
    queue.catch_up()
    queue.advance(3_600_000)
    queue.send("a", due="+60000")
    queue.now_ms = EPOCH_MS
    assert queue.reschedule(("a", "+5")) == [("rescheduled", EPOCH_MS + 5)]
    queue.advance(5)
    queue.promote()
    (delivery,) = queue.read("g")
    assert delivery.body == b"body"
    assert queue.nack(delivery, delay_ms=7) == [("retry", EPOCH_MS + 12)]


def test_what_stands_against_it(queue: Queue) -> None:
    """Where nothing waits, nothing changes, and the caller is told why."""
    queue.join("g")
    queue.send_all([outgoing(id) for id in ("acked", "dead", "held", "cancelled")])
    acked, dead, _, _ = queue.read("g")
    queue.ack(acked)
    queue.nack(dead, rejected=True)
    queue.cancel("cancelled")
    queue.send("ready")
    before = queue.contents()
    outcomes = queue.reschedule(*((id, "+5") for id in ("acked", "dead", "held", "cancelled", "ready", "never")))
    assert [outcome for outcome, _ in outcomes] == ["finished", "garbage", "delivered", "unknown", "ready", "unknown"]
    assert queue.contents() == before


def test_two_groups_in_two_places(queue: Queue) -> None:
    """A retry is not put off while another group is still to have the message."""
    queue.join("g", "h")
    queue.send("a")
    queue.nack(*queue.read("g"))
    before = queue.contents()
    assert queue.reschedule(("a", "+5")) == [("ready", 0)]
    queue.read("h")
    assert queue.reschedule(("a", "+5")) == [("delivered", 0)]
    assert queue.contents().retry == before.retry


def test_after_a_trim_with_a_younger_group(queue: Queue) -> None:
    """A group that was made later owes nothing of the message, and does not stand against it."""
    queue.join("g")
    queue.send("a")
    queue.nack(*queue.read("g"))
    queue.join("h")
    queue.trim()
    assert queue.reschedule(("a", "+5")) == [("rescheduled", EPOCH_MS + 5)]


def test_wake_only_for_an_earlier_due_time(queue: Queue, wakes: Callable[[], list[str]]) -> None:
    """A reschedule publishes when it made the earliest due time of the topic."""
    queue.send_all([outgoing("a", due="+500"), outgoing("b", due="+600")])
    wakes()
    queue.reschedule(("b", "+550"))
    queue.reschedule(("a", "+800"))
    assert wakes() == []
    queue.reschedule(("a", "+540"), ("b", "+530"))
    assert wakes() == [f"orders {EPOCH_MS + 530}"]


def test_thousand_at_once(queue: Queue) -> None:
    """1,000 messages in one call, 1,000 retries in another."""
    queue.join("g", "h")
    ids = [f"{n}" for n in range(1_000)]
    queue.send_all([outgoing(id, due="+5", ttl_ms=STEADY.visibility_ms) for id in ids])
    assert {outcome for outcome, _ in queue.reschedule(*((id, "+9") for id in ids))} == {"rescheduled"}
    queue.advance(9)
    queue.promote()
    queue.nack(*queue.read("g"))
    queue.nack(*queue.read("h"))
    assert {outcome for outcome, _ in queue.reschedule(*((id, "+9") for id in ids))} == {"rescheduled"}
