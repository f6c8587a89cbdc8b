"""cancel: nothing is delivered any more, wherever the message stands."""

import pytest

from lisa_common.errors import OutcomeUnknown
from lisa_common.model.policy import Policy
from lisa_common.model.record import is_cancelled
from lisa_common.protocol.call import command
from support.queue import EPOCH_MS, STEADY, Queue, outgoing


def test_waiting(queue: Queue) -> None:
    """What waits goes at once and leaves nothing; its id may be sent again."""
    queue.send("a", due="+5", ttl_ms=9)
    assert queue.cancel("a") == ["cancelled"]
    assert queue.contents().left == []
    assert queue.send("a")


@pytest.mark.parametrize("due", ["+5", "+0"])
def test_of_another_time(queue: Queue, due: str) -> None:
    """A message of another time than the one that is meant is left alone; where there is none, all is as ever."""
    queue.send("a", due=due)
    with pytest.raises(OutcomeUnknown):
        queue.cancel("a", sent_ms=EPOCH_MS - 1)
    assert queue.contents().records.keys() == {"a"}
    assert queue.cancel("a", sent_ms=EPOCH_MS) == ["cancelled"]
    assert queue.cancel("a", sent_ms=EPOCH_MS) == ["unknown"]
    assert queue.contents().left == []


@pytest.mark.parametrize("groups", [(), ("g",), ("g", "h")])
def test_ready(queue: Queue, groups: tuple[str, ...]) -> None:
    """What is ready goes at once, with its entry, whoever was to have it."""
    queue.join(*groups)
    queue.send_all([outgoing("b"), outgoing("a", ttl_ms=9), outgoing("c")])
    assert queue.cancel("a") == ["cancelled"]
    contents = queue.contents()
    assert contents.records.keys() == {"b", "c"}
    assert contents.ready_ids == ["b", "c"]
    assert contents.expiring == {}
    assert contents.owed.keys() == ({"b", "c"} if len(groups) > 1 else set())


def test_retry(queue: Queue) -> None:
    """What is to be retried goes at once."""
    queue.join("g")
    queue.send("a")
    queue.nack(*queue.read("g"))
    assert queue.cancel("a") == ["cancelled"]
    assert queue.contents().left == []


def test_promoted_retry(queue: Queue) -> None:
    """So does a retry that is ready but unread."""
    queue.join("g")
    queue.send("a")
    queue.nack(*queue.read("g"), delay_ms=0)
    queue.promote()
    assert queue.cancel("a") == ["cancelled"]
    assert queue.contents().left == []
    assert queue.read("g") == []


def test_retry_after_a_trim_with_a_younger_group(queue: Queue) -> None:
    """A group that was made later than the message became ready owes nothing of it: the id is free at once."""
    queue.join("g")
    queue.send("a")
    queue.nack(*queue.read("g"))
    queue.join("h")
    assert queue.trim().entries == 1
    assert queue.cancel("a") == ["cancelled"]
    assert queue.contents().left == []


def test_delivered(queue: Queue) -> None:
    """A delivered message leaves a cancelled record: no retry follows; its id stays taken until it is settled."""
    queue.join("g")
    queue.send("a", ttl_ms=9)
    (delivery,) = queue.read("g")
    assert queue.cancel("a") == ["delivered"]
    contents = queue.contents()
    assert contents.left == ["records"]
    assert is_cancelled(contents.records["a"])
    assert queue.send("a") == 0
    assert queue.cancel("a") == ["cancelled"]
    assert queue.ack(delivery) == ["acked"]
    assert queue.contents().left == ["finished"]


def test_no_early_delivery_of_the_id_sent_again(queue: Queue) -> None:
    """The retry of a cancelled delivery is never taken for a later message of the same id (promise 1)."""
    queue.policy = Policy(dedup_window_ms=0)
    queue.join("g")
    queue.send("a")
    queue.read("g")
    queue.cancel("a")
    queue.advance(STEADY.visibility_ms)
    assert queue.send("a", due="+60000") == 0
    queue.reclaim("g")
    assert queue.send("a", due="+60000") == queue.now_ms + 60_000
    queue.advance(59_999)
    queue.promote()
    assert queue.read("g") == []
    queue.advance(1)
    queue.promote()
    assert [d.id for d in queue.read("g")] == ["a"]


@pytest.mark.parametrize("before", ["waiting", "ready", "retry"])
def test_sent_again_after_a_cancel(queue: Queue, before: str) -> None:
    """After a cancel at once the id is free, and only the new message is delivered, when it is due."""
    queue.join("g")
    queue.send("a", due="+5" if before == "waiting" else "+0", body=b"old")
    if before == "retry":
        queue.nack(*queue.read("g"), delay_ms=5)
    assert queue.cancel("a") == ["cancelled"]
    assert queue.send("a", due="+100", body=b"new") == EPOCH_MS + 100
    queue.advance(99)
    queue.promote()
    assert queue.read("g") == []
    queue.advance(1)
    queue.promote()
    (delivery,) = queue.read("g")
    assert (delivery.body, delivery.attempt) == (b"new", 1)


@pytest.mark.parametrize("between", [0, 600], ids=["in one ms", "a page apart"])
def test_an_entry_of_an_earlier_message_due_at_the_same_time(queue: Queue, between: int) -> None:
    """It is not taken for the later one's, which goes at once: nothing of it is left that could be delivered."""
    queue.join("g")
    queue.send_as_before("a", EPOCH_MS)
    queue.nack(*queue.read("g"), rejected=True)
    queue.purge("g/a")
    if between:
        queue.catch_up()
        queue.send_all([outgoing(f"{n}") for n in range(between)])
    queue.send_as_before("a", EPOCH_MS)
    answer = queue.find("a")
    assert answer is not None
    assert [(copy.group, copy.state) for copy in answer.copies] == [("g", "ready")]
    assert queue.reschedule(("a", "+5")) == [("ready", 0)]
    assert queue.cancel("a") == ["cancelled"]
    queue.send_as_before("a", EPOCH_MS, body=b"third")
    assert [d.body for d in queue.read("g") if d.id == "a"] == [b"third"]


def test_dead_letters_stay(queue: Queue) -> None:
    """A message that is all dead is not cancelled."""
    queue.join("g", "h")
    queue.send("a")
    queue.nack(*queue.read("g"), rejected=True)
    queue.nack(*queue.read("h"), rejected=True)
    queue.send("b", ttl_ms=1, due="+1")
    queue.advance(9)
    queue.sweep()
    before = queue.contents()
    assert before.garbage.keys() == {"g/a", "h/a", "/b"}
    assert queue.cancel("a", "b") == ["garbage", "garbage"]
    assert queue.contents() == before


def test_dead_in_one_group(queue: Queue) -> None:
    """What is dead in one group goes with the message as long as another group is to have it."""
    queue.join("g", "h")
    queue.send("a")
    queue.nack(*queue.read("g"), rejected=True)
    assert queue.cancel("a") == ["cancelled"]
    assert queue.contents().left == []
    assert queue.read("h") == []


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("rejected", [False, True])
def test_failed_in_a_group_that_is_gone(queue: Queue, *, rejected: bool, held: bool) -> None:
    """Nothing of it is left that could pass for the next message of this id, or would stay for ever."""
    queue.join("g", "h")
    queue.send("a")
    queue.nack(*queue.read("g"), rejected=rejected)
    queue.destroy("g")
    if held:
        (delivery,) = queue.read("h")
        assert queue.cancel("a") == ["delivered"]
        assert queue.contents().left == ["records", "owed"]
        queue.nack(delivery)
    else:
        assert queue.cancel("a") == ["cancelled"]
    assert queue.contents().left == []


def test_delivered_in_one_group(queue: Queue) -> None:
    """The cancelled record stays for those groups alone that still meet the entry."""
    queue.join("g", "h", "i")
    queue.send("a")
    queue.nack(*queue.read("g"))
    (in_h,) = queue.read("h")
    assert queue.cancel("a") == ["delivered"]
    contents = queue.contents()
    assert contents.left == ["records", "owed"]
    assert contents.owed == {"a": "h,i"}
    assert queue.nack(in_h)[0][0] == "gone"
    assert queue.contents().owed == {"a": "i"}
    assert queue.read("i") == []
    assert queue.contents().left == []


def test_finished_and_unknown(queue: Queue) -> None:
    """Too late, or never there: the caller is told which."""
    queue.join("g")
    queue.send("a")
    queue.ack(*queue.read("g"))
    before = queue.contents()
    assert queue.cancel("a", "b") == ["finished", "unknown"]
    assert queue.contents() == before
    queue.advance(STEADY.dedup_window_ms)
    assert queue.cancel("a") == ["unknown"]


def test_deep_in_a_backlog(queue: Queue) -> None:
    """The search of the stream is bounded: deeper than that, a cancelled record stays until its entry is met."""
    queue.join("g")
    for start in range(0, 3_000, 1_000):
        queue.send_all([outgoing(f"{n}") for n in range(start, start + 1_000)])
    assert queue.cancel("1999", "2999") == ["cancelled", "cancelled"]
    contents = queue.contents()
    assert len(contents.stream) == 2_999
    assert "1999" not in contents.records
    assert is_cancelled(contents.records["2999"])
    assert queue.send("2999") == 0
    assert len(queue.read("g")) == 2_998
    assert queue.send("2999") != 0


def test_foreign_entries_do_not_mislead_the_search(queue: Queue) -> None:
    """Entries that are none of ours are passed over, also when they bear an id."""
    queue.join("g")
    ready = queue.keys.of("ready")
    foreign = (("x", "y"), ("id", "other"), ("id", "a"), ("id", "a", "due", "?"))
    queue.connection.execute([command("XADD", ready, "*", *fields) for fields in foreign * 200])
    queue.send("a")
    assert queue.cancel("a") == ["cancelled"]
    assert queue.contents().left == []


def test_damaged_record(queue: Queue) -> None:
    """A message whose record cannot be read can be cancelled; its entry ends it."""
    queue.join("g")
    queue.send("a")
    queue.connection.call(command("HSET", queue.keys.of("messages"), "a", b"\x09rubbish-that-is-long-enough"))
    assert queue.cancel("a") == ["cancelled"]
    assert queue.read("g") == []
    assert queue.contents().left == []


@pytest.mark.parametrize("state", ["waiting", "ready", "retry", "delivered"])
def test_thousand_at_once(queue: Queue, state: str) -> None:
    """1,000 messages in one call, wherever they stand."""
    queue.join("g", "h")
    ids = [f"{n}" for n in range(1_000)]
    queue.send_all([outgoing(id, due="+5" if state == "waiting" else "+0", ttl_ms=9) for id in ids])
    if state in ("retry", "delivered"):
        deliveries = queue.read("g")
        if state == "retry":
            queue.nack(*deliveries)
    assert set(queue.cancel(*ids)) == {"delivered" if state == "delivered" else "cancelled"}
    contents = queue.contents()
    if state != "delivered":
        assert contents.left == []
        assert contents.stream == {} or state == "retry"
    else:
        assert all(map(is_cancelled, contents.records.values()))
