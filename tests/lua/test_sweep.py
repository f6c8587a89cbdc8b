"""sweep: housekeeping by time."""

import pytest

from lisa_common.model.policy import Policy
from lisa_common.protocol.managing import Swept
from support.queue import EPOCH_MS, STEADY, Queue, outgoing


def counts(swept: Swept) -> tuple[int, int, int]:
    """What a sweep did."""
    return swept.expired, swept.forgotten, swept.aged_out


def test_nothing_to_do(queue: Queue) -> None:
    """A topic without keys has nothing to sweep."""
    assert queue.sweep() == Swept(0, 0, 0, more=False, next_in_ms=None)


def test_expired_while_waiting(queue: Queue) -> None:
    """What nobody promoted in time dies without a group (promise 8), and not a millisecond early."""
    queue.send("a", due="+500", ttl_ms=100)
    queue.advance(599)
    assert counts(queue.sweep()) == (0, 0, 0)
    queue.advance(1)
    assert counts(queue.sweep()) == (1, 0, 0)
    contents = queue.contents()
    assert contents.left == ["records", "failures", "garbage"]
    assert contents.garbage == {"/a": EPOCH_MS + 600}
    failure = queue.failure("/a")
    assert (failure.reason, failure.attempts, failure.due_ms) == ("expired", 0, EPOCH_MS + 500)


@pytest.mark.parametrize("groups", [(), ("g",), ("g", "h")])
def test_expired_while_ready(queue: Queue, groups: tuple[str, ...]) -> None:
    """What nobody read in time leaves the stream and dies in each group that was to have it."""
    queue.join(*groups)
    queue.send_all([outgoing("a", ttl_ms=100), outgoing("b")])
    queue.advance(100)
    assert counts(queue.sweep()) == (max(1, len(groups)), 0, 0)
    contents = queue.contents()
    assert contents.ready_ids == ["b"]
    assert contents.garbage.keys() == {f"{group}/a" for group in groups or [""]}
    assert contents.expiring == {}


def test_an_entry_of_an_earlier_message_due_at_the_same_time(queue: Queue) -> None:
    """It does not hide the later message: that one is ready, and expires."""
    queue.join("g")
    queue.send_as_before("a", EPOCH_MS)
    queue.nack(*queue.read("g"), rejected=True)
    queue.purge("g/a")
    queue.catch_up()
    queue.send_as_before("a", EPOCH_MS, ttl_ms=9)
    assert queue.sweep().expired == 1
    assert queue.contents().garbage.keys() == {"g/a"}
    assert queue.read("g") == []


def test_expired_in_retry(queue: Queue) -> None:
    """A retry expires with its message; attempts and the last error are kept."""
    queue.join("g")
    queue.send("a", ttl_ms=100)
    queue.nack(*queue.read("g"), error="no", delay_ms=500)
    queue.advance(100)
    assert counts(queue.sweep()) == (1, 0, 0)
    contents = queue.contents()
    assert contents.left == ["records", "failures", "garbage"]
    failure = queue.failure("g/a")
    assert (failure.reason, failure.attempts, failure.error) == ("expired", 1, "no")


def test_expired_as_promoted_retry(queue: Queue) -> None:
    """A retry that is ready but unread expires too, and its entry goes."""
    queue.join("g")
    queue.send("a", ttl_ms=100)
    queue.nack(*queue.read("g"), delay_ms=0)
    queue.promote()
    queue.advance(100)
    assert counts(queue.sweep()) == (1, 0, 0)
    assert queue.contents().ready_ids == ["a"], "the first entry, which is acked"
    assert queue.read("g") == []


def test_dropped(queue: Queue) -> None:
    """With the policy "drop" nothing is kept but the dedup window of chosen ids."""
    queue.policy = Policy(on_expire="drop", dedup_window_ms=500)
    queue.join("g")
    queue.send_all([outgoing("waits", due="+50", ttl_ms=50), outgoing("ready", ttl_ms=100), outgoing("~", ttl_ms=1)])
    queue.advance(100)
    assert counts(queue.sweep()) == (3, 0, 0)
    contents = queue.contents()
    assert contents.left == ["finished"]
    assert contents.finished == {"waits": EPOCH_MS + 600, "ready": EPOCH_MS + 600}
    assert contents.stream == {}


def test_what_is_being_delivered_is_left_alone(queue: Queue) -> None:
    """A handler that began in time may finish; the sweep looks again when its lease may have run out."""
    queue.join("g")
    queue.send("a", ttl_ms=100)
    (delivery,) = queue.read("g")
    queue.advance(100)
    assert counts(queue.sweep()) == (0, 0, 0)
    contents = queue.contents()
    assert contents.left == ["records", "expiring"]
    assert contents.expiring == {"a": queue.now_ms + STEADY.visibility_ms}
    assert queue.ack(delivery) == ["acked"]
    assert queue.contents().left == ["finished"]


def test_one_group_delivers_while_others_expire(queue: Queue) -> None:
    """A retry expires at once; an entry that some group has stays, and is judged when it is read."""
    queue.join("g", "h", "i")
    queue.send("a", ttl_ms=100)
    queue.read("g")
    queue.nack(*queue.read("h"), delay_ms=500)
    queue.advance(100)
    assert counts(queue.sweep()) == (1, 0, 0)
    contents = queue.contents()
    assert contents.garbage.keys() == {"h/a"}
    assert contents.ready_ids == ["a"]
    assert queue.read("i") == []
    assert queue.contents().garbage.keys() == {"h/a", "i/a"}


def test_a_younger_group_keeps_nothing_alive(queue: Queue) -> None:
    """After a trim too, a group made later owes nothing: the message is done with at the first look."""
    queue.join("g")
    queue.send("a", ttl_ms=100)
    queue.nack(*queue.read("g"), delay_ms=500)
    queue.join("h")
    queue.trim()
    queue.advance(100)
    assert counts(queue.sweep()) == (1, 0, 0)
    assert queue.contents().expiring == {}


def test_replayed_does_not_expire(queue: Queue) -> None:
    """A replay lifts the time to live; the sweep forgets about it."""
    queue.send("a", ttl_ms=100, due="+10")
    queue.advance(110)
    queue.sweep()
    queue.replay("/a")
    queue.advance(1_000)
    assert counts(queue.sweep()) == (0, 0, 0)
    queue.join("g")
    assert [d.id for d in queue.read("g")] == ["a"]


def test_forgets_finished_ids(queue: Queue) -> None:
    """An id is forgotten when its window is over."""
    queue.policy = Policy(dedup_window_ms=1_000)
    queue.join("g")
    queue.send("a")
    queue.ack(*queue.read("g"))
    queue.advance(999)
    assert queue.sweep() == Swept(0, 0, 0, more=False, next_in_ms=1)
    queue.advance(1)
    assert counts(queue.sweep()) == (0, 1, 0)
    assert queue.contents().left == []


def test_garbage_by_age(queue: Queue) -> None:
    """Garbage older than the retention goes, with its record."""
    queue.policy = Policy(garbage_retention_ms=1_000)
    queue.join("g", "h")
    queue.send("a")
    queue.nack(*queue.read("g"), rejected=True)
    queue.advance(1)
    queue.nack(*queue.read("h"), rejected=True)
    queue.advance(999)
    assert counts(queue.sweep()) == (0, 0, 1)
    contents = queue.contents()
    assert contents.garbage.keys() == {"h/a"}
    assert contents.owed == {"a": "h"}
    queue.advance(1)
    assert counts(queue.sweep()) == (0, 0, 1)
    assert queue.contents().left == []


def test_garbage_of_a_group_that_is_gone(queue: Queue) -> None:
    """It takes its message with it, but not a later one of the same id."""
    queue.join("g")
    queue.send_all([outgoing("a"), outgoing("b")])
    queue.nack(*queue.read("g"), rejected=True)
    queue.destroy("g")
    queue.cancel("a")
    queue.advance(STEADY.garbage_retention_ms)
    queue.send("a", due="+5")
    assert queue.sweep().aged_out == 2
    assert queue.contents().left == ["waiting", "records"]
    assert queue.contents().records.keys() == {"a"}


def test_garbage_by_number(queue: Queue) -> None:
    """Of too much garbage the oldest goes."""
    queue.policy = Policy(garbage_max_messages=2)
    queue.join("g")
    for id in ("c", "b", "a"):
        queue.send(id)
        queue.nack(*queue.read("g"), rejected=True)
        queue.advance(1)
    assert counts(queue.sweep()) == (0, 0, 1)
    assert queue.contents().garbage.keys() == {"g/a", "g/b"}


def test_when_there_is_more_to_do(queue: Queue) -> None:
    """A sweep says how long nothing will be over: the earliest of expiry, window and retention."""
    queue.policy = Policy(garbage_retention_ms=900, dedup_window_ms=800)
    queue.join("g")
    queue.send("dead")
    queue.nack(*queue.read("g"), rejected=True)
    assert queue.sweep().next_in_ms == 900
    queue.send("done")
    queue.ack(*queue.read("g"))
    assert queue.sweep().next_in_ms == 800
    queue.send("ttl", due="+500", ttl_ms=200)
    assert queue.sweep().next_in_ms == 700


def test_bounded(queue: Queue) -> None:
    """Each kind is bounded by the limit, and a full batch says that there is more."""
    queue.send_all([outgoing(f"{n}", due="+1", ttl_ms=5) for n in range(5)])
    queue.advance(9)
    swept = [queue.sweep(limit=2) for _ in range(3)]
    assert [s.expired for s in swept] == [2, 2, 1]
    assert [s.more for s in swept] == [True, True, False]


def test_thousand_at_once(queue: Queue) -> None:
    """1,000 of each kind, also with two groups, in as many calls as it takes."""
    queue.policy = Policy(dedup_window_ms=10, garbage_retention_ms=10)
    queue.join("g", "h")
    queue.send_all([outgoing(f"done{n}") for n in range(1_000)])
    queue.ack(*queue.read("g"))
    queue.ack(*queue.read("h"))
    queue.send_all([outgoing(f"dead{n}") for n in range(1_000)])
    queue.nack(*queue.read("g"), rejected=True)
    queue.nack(*queue.read("h"), rejected=True)
    queue.trim()
    queue.send_all([outgoing(f"ready{n}", ttl_ms=10) for n in range(1_000)])
    queue.advance(10)
    swept = [queue.sweep()]
    while swept[-1].more:
        swept.append(queue.sweep())
    assert tuple(map(sum, zip(*map(counts, swept), strict=True))) == (2_000, 1_000, 2_000)
    contents = queue.contents()
    assert len(contents.garbage) == 2_000
    assert contents.owed.keys() == contents.records.keys()


def test_garbage_for_a_dead_letter_topic_is_left(queue: Queue) -> None:
    """Managers move it, however old and however much it is."""
    queue.policy = Policy(garbage_max_messages=0, garbage_retention_ms=1, dead_letter_topic="dead")
    queue.join("g")
    queue.send("a", ttl_ms=5)
    queue.send("b")
    queue.nack(*queue.read("g", limit=2), rejected=True)
    queue.advance(86_400_000)
    swept = queue.sweep()
    assert (swept.aged_out, swept.next_in_ms) == (0, None)
    assert queue.contents().garbage.keys() == {"g/a", "g/b"}
