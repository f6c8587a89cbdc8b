"""send: storing and scheduling."""

import time
from collections.abc import Callable

import pytest

from lisa_common.model.policy import Policy
from lisa_common.model.record import Record, unpack_record
from lisa_common.protocol.call import command
from lisa_common.protocol.producing import repeated
from support.queue import EPOCH_MS, Queue, outgoing


def test_due_later_waits(queue: Queue) -> None:
    """A message with a delay has a record and a place in waiting, and nothing else."""
    assert queue.send("a", due="+500", body=b"hello", headers={"k": "v"}) == EPOCH_MS + 500
    contents = queue.contents()
    assert contents.left == ["waiting", "records"]
    assert contents.waiting == {"a": EPOCH_MS + 500}
    assert unpack_record(contents.records["a"]) == Record(EPOCH_MS, EPOCH_MS + 500, b"hello", None, None, 0, {"k": "v"})
    assert contents.stream == {}


def test_due_now_is_ready_at_once(queue: Queue) -> None:
    """A message without a delay goes to the stream in the same script."""
    assert queue.send("a") == EPOCH_MS
    contents = queue.contents()
    assert contents.left == ["records"]
    assert list(contents.stream.values()) == [{"id": "a", "due": str(EPOCH_MS), "n": "1"}]


def test_absolute_time_is_kept(queue: Queue) -> None:
    """An absolute due time is stored as given; one in the past is now."""
    assert queue.send("later", due=str(EPOCH_MS + 7)) == EPOCH_MS + 7
    assert queue.send("past", due=str(EPOCH_MS - 7)) == EPOCH_MS
    contents = queue.contents()
    assert contents.waiting == {"later": EPOCH_MS + 7}
    assert list(contents.stream.values()) == [{"id": "past", "due": str(EPOCH_MS), "n": "1"}]


def test_the_ttl_of_a_past_message_begins_now(queue: Queue) -> None:
    """It can be delivered for as long as any other, whether it is ready at once, waits at a door, or is moved."""
    queue.join("g")
    queue.send("past", due="1", ttl_ms=10)
    queue.send("moved", due="+5", ttl_ms=10)
    assert queue.reschedule(("moved", "1")) == [("rescheduled", EPOCH_MS)]
    queue.limit(paused=True)
    queue.send("held", due="1", ttl_ms=10)
    assert set(queue.contents().expiring.values()) == {EPOCH_MS + 10}
    queue.limit()
    queue.advance(9)
    queue.promote()
    assert queue.sweep().expired == 0
    assert [delivery.id for delivery in queue.read("g")] == ["past", "held", "moved"]


def test_the_server_tells_the_time(queue: Queue) -> None:
    """Without `now_ms` a delay counts from the server's clock, whatever the sender's says."""
    queue.now_ms = ""  # type: ignore[assignment]
    seconds, micros = queue.connection.call(command("TIME"))
    now_ms = int(seconds) * 1000 + int(micros) // 1000
    assert now_ms + 60_000 <= queue.send("a", due="+60000") <= now_ms + 70_000


def test_a_living_id_is_a_duplicate(queue: Queue) -> None:
    """The first send of an id wins, wherever the message stands; the second changes nothing (promise 6)."""
    queue.join("g")
    queue.send("waits", due="+500", body=b"first")
    queue.send("ready", body=b"first")
    before = queue.contents()
    assert queue.send("waits", body=b"second") == 0
    assert queue.send("ready", body=b"second", ttl_ms=5, priority=3) == 0
    assert queue.contents() == before
    (delivery,) = queue.read("g")
    assert queue.send("ready") == 0
    queue.nack(delivery, rejected=True)
    assert queue.send("ready") == 0


def test_twins_in_one_batch(queue: Queue) -> None:
    """Within one batch the first of an id wins too."""
    messages = [outgoing("a", body=b"1"), outgoing("b"), outgoing("a", body=b"2")]
    assert queue.send_all(messages) == [EPOCH_MS, EPOCH_MS, 0]
    contents = queue.contents()
    assert contents.ready_ids == ["a", "b"]
    assert unpack_record(contents.records["a"]).body == b"1"


def test_a_new_message_beside_a_repeat_of_its_id(queue: Queue) -> None:
    """A send with a lost reply was cancelled. Another caller sends the id anew, in the call that repeats the first."""
    first, began = outgoing("a", due="+60000", body=b"1"), time.monotonic()
    queue.send_all([first])
    queue.cancel("a")
    assert queue.send_all([repeated(first, began), outgoing("a", body=b"2")]) == [0, EPOCH_MS]
    assert unpack_record(queue.contents().records["a"]).body == b"2"


def test_a_finished_id_is_known_for_its_window(queue: Queue) -> None:
    """After an ack an id stays known until the dedup window ends, to the millisecond; also when no sweep came by."""
    queue.policy = Policy(dedup_window_ms=1_000)
    queue.join("g")
    queue.send("a")
    queue.ack(*queue.read("g"))
    queue.advance(999)
    assert queue.send("a") == 0
    queue.advance(1)
    assert queue.send("a") == EPOCH_MS + 1_000
    assert queue.contents().ready_ids == ["a", "a"]


def test_a_generated_id_is_known_while_it_lives(queue: Queue) -> None:
    """An id that ends in "~" is deduplicated while the message lives, and forgotten at ack."""
    queue.join("g")
    assert queue.send("made~")
    assert queue.send("made~") == 0
    queue.ack(*queue.read("g"))
    assert queue.contents().left == []
    assert queue.send("made~")


def test_a_batch_that_was_stored_in_part_is_completed(queue: Queue) -> None:
    """Ids that Lisa made are looked for together. Those that are known stay as they are; the others are stored."""
    queue.join("g")
    assert queue.send_all([outgoing("a~", due="+5"), outgoing("b~")]) == [EPOCH_MS + 5, EPOCH_MS]
    before = queue.contents().records
    batch = [outgoing(f"{name}~", due="+9", body=b"again", ttl_ms=3) for name in "abc"]
    assert queue.send_all(batch) == [0, 0, EPOCH_MS + 9]
    contents = queue.contents()
    assert contents.waiting == {"a~": EPOCH_MS + 5, "c~": EPOCH_MS + 9}
    assert {id: contents.records[id] for id in before} == before
    assert contents.expiring == {"c~": EPOCH_MS + 12}
    assert queue.send_all(batch) == [0, 0, 0]
    assert queue.contents() == contents
    assert queue.send_all([outgoing("d~"), outgoing("d~")]) == [EPOCH_MS, 0]


def test_a_chosen_id_among_others_is_known_for_its_window(queue: Queue) -> None:
    """One in a batch suffices, and then each is looked for by itself."""
    queue.policy = Policy(dedup_window_ms=1_000)
    queue.join("g")
    queue.send("chosen")
    queue.ack(*queue.read("g"))
    batch = [outgoing("a~"), outgoing("chosen"), outgoing("b~")]
    assert queue.send_all(batch) == [EPOCH_MS, 0, EPOCH_MS]
    assert queue.contents().ready_ids == ["chosen", "a~", "b~"]


def test_a_generated_id_has_no_window(queue: Queue) -> None:
    """Alone and among others it is new, also where another program has put it among the finished ids."""
    for id in ("alone~", "among~", "b"):
        queue.connection.call(command("ZADD", queue.keys.of("finished"), EPOCH_MS + 1_000, id))
    assert queue.send("alone~") == EPOCH_MS
    assert queue.send_all([outgoing("among~"), outgoing("a"), outgoing("b")]) == [EPOCH_MS, EPOCH_MS, 0]


def test_ttl_is_counted_from_the_due_time(queue: Queue) -> None:
    """Only messages with a time to live stand in expiring."""
    queue.send_all([outgoing("a", due="+500", ttl_ms=100), outgoing("b", ttl_ms=70), outgoing("c")])
    assert queue.contents().expiring == {"a": EPOCH_MS + 600, "b": EPOCH_MS + 70}


def test_ready_at_once_in_order_of_due_time_then_priority(queue: Queue) -> None:
    """What is due at once in one batch becomes ready by due time, then priority, then position."""
    messages = [
        outgoing("now-1"),
        outgoing("now-2"),
        outgoing("now-high", priority=255),
        outgoing("early", due=str(EPOCH_MS - 1)),
    ]
    queue.send_all(messages)
    assert queue.contents().ready_ids == ["early", "now-high", "now-1", "now-2"]


def test_owed_by_two_groups(queue: Queue) -> None:
    """What becomes ready for two groups is counted; with one group nothing is."""
    queue.join("g")
    queue.send("one")
    queue.join("h")
    queue.send("two")
    queue.send("later", due="+5")
    assert queue.contents().owed == {"two": "g,h"}


def test_wake_only_for_an_earlier_due_time(queue: Queue, wakes: Callable[[], list[str]]) -> None:
    """A send publishes topic and due time if it is due before all that waits, and only then."""
    queue.send("a", due="+500")
    assert wakes() == [f"orders {EPOCH_MS + 500}"]
    queue.send("same", due="+500")
    queue.send("later", due="+501")
    queue.send("a", due="+1")
    queue.send("now")
    assert wakes() == []
    queue.send_all([outgoing("b", due="+499"), outgoing("c", due="+498")])
    assert wakes() == [f"orders {EPOCH_MS + 498}"]
    queue.send("p", due="+498", priority=255)
    assert wakes() == []


def test_thousand_at_once(queue: Queue) -> None:
    """A batch of 1,000 is one call: later, now, with and without ttl."""
    queue.join("g", "h")
    half = [outgoing(f"later-{n}", due="+9", ttl_ms=5) for n in range(500)]
    assert all(queue.send_all(half + [outgoing(f"now-{n}", ttl_ms=5) for n in range(500)]))
    assert all(queue.send_all([outgoing(f"l-{n}", due="+9", ttl_ms=5) for n in range(1_000)]))
    contents = queue.contents()
    assert len(contents.waiting) == 1_500
    assert len(contents.expiring) == len(contents.records) == 2_000
    assert len(contents.stream) == len(contents.owed) == 500


@pytest.mark.parametrize("ids", [["a"], ["a", "b"]])
def test_a_clock_that_is_set_back_finds_no_tombstone_of_a_live_message(queue: Queue, ids: list[str]) -> None:
    """The id was sent again after its window, and no sweep came by in between."""
    queue.policy = Policy(dedup_window_ms=1_000)
    queue.join("g")
    queue.send("a")
    queue.ack(*queue.read("g"))
    queue.advance(1_000)
    queue.send_all([outgoing(id, due="+60000") for id in ids])
    assert queue.contents().finished["a"] == 0
