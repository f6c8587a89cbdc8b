"""replace: a send in place of a message that still waits."""

from collections.abc import Callable

import pytest

from lisa_common.errors import QueueFull, Resharded
from lisa_common.model.message import Replacement
from lisa_common.model.policy import Policy
from lisa_common.model.record import Record, unpack_record
from lisa_common.model.sharding import Layout
from lisa_common.protocol import producing
from support.queue import Queue, outgoing


def _record(queue: Queue, id: str) -> Record:
    return unpack_record(queue.contents().records[id])


def test_a_waiting_message_is_replaced(queue: Queue) -> None:
    """Body, due time, limits and the time of the send are new; the former ttl is gone."""
    queue.send("a", due="+9000", ttl_ms=50, priority=7, max_retries=1)
    queue.advance(10)
    due_ms = queue.now_ms + 2_000
    assert queue.replace("a", due="+2000", body=b"new") == -due_ms
    assert _record(queue, "a") == Record(queue.now_ms, due_ms, b"new", None, None, 0, {})
    held = queue.contents()
    assert (held.waiting, held.expiring, held.finished, held.withdrawn) == ({"a": due_ms}, {}, {}, {})
    assert queue.replace("a", due="+1000", ttl_ms=7, priority=128) == -(queue.now_ms + 1_000)
    held = queue.contents()
    assert (held.waiting, held.expiring) == ({"a": queue.now_ms + 999.5}, {"a": queue.now_ms + 1_007})


def test_without_a_message_it_is_a_send(queue: Queue) -> None:
    """A free id is taken; a message due now is ready at once, and a managers' wake tells of a later one."""
    queue.join("g")
    assert queue.replace("a") == queue.now_ms
    assert queue.replace("b", due="+5") == queue.now_ms + 5
    assert queue.contents().waiting == {"b": queue.now_ms + 5}
    assert [delivery.id for delivery in queue.read("g")] == ["a"]


def test_an_earlier_due_time_wakes_the_managers(queue: Queue, wakes: Callable[[], list[str]]) -> None:
    """They would sleep until the former one."""
    queue.send("a", due="+9000")
    wakes()
    queue.replace("a", due="+2000")
    assert wakes() == [f"orders {queue.now_ms + 2_000}"]


def test_due_now_it_is_ready_at_once(queue: Queue) -> None:
    """It leaves the messages that wait; the first in time is the first in the stream."""
    queue.join("a", "b")
    queue.send("x", due="+9000")
    messages = [outgoing("x"), outgoing("y"), outgoing("z", due=str(queue.now_ms - 5))]
    call = producing.send(queue.keys, [Replacement(*each) for each in messages], repeatable=False, now_ms=queue.now_ms)
    dues = queue.connection.call(call)
    assert dues == [-queue.now_ms, queue.now_ms, queue.now_ms]
    held = queue.contents()
    assert (held.ready_ids, held.waiting, held.owed["x"]) == (["z", "x", "y"], {}, "a,b")


@pytest.mark.parametrize("state", ["ready", "delivered", "garbage", "cancelled", "finished"])
def test_in_other_states_it_is_a_duplicate(queue: Queue, state: str) -> None:
    """Nothing changes."""
    queue.join("g")
    queue.send("a")
    if state != "ready":
        (delivery,) = queue.read("g")
        if state == "garbage":
            queue.nack(delivery, rejected=True)
        elif state == "cancelled":
            queue.cancel("a")
        elif state == "finished":
            queue.ack(delivery)
    before = queue.contents()
    assert queue.replace("a", due="+5", body=b"new") == 0
    assert queue.contents() == before


def test_a_retry_is_replaced(queue: Queue) -> None:
    """It is a new message: its attempts count from one, and a late ack of the former delivery is stale."""
    queue.join("g")
    queue.send("a", ttl_ms=99_000)
    (former,) = queue.read("g")
    queue.nack(former, delay_ms=60_000)
    queue.advance(1)
    assert queue.replace("a", due="+2000", body=b"new") == -(queue.now_ms + 2_000)
    held = queue.contents()
    assert (held.retry, held.failures, held.expiring) == ({}, {}, {})
    assert queue.ack(former) == ["stale"]
    queue.advance(2_000)
    queue.promote()
    (delivery,) = queue.read("g")
    assert (delivery.body, delivery.attempt) == (b"new", 1)
    assert queue.ack(delivery) == ["acked"]
    assert queue.contents().left == ["finished"]


def test_a_retry_of_one_group_beside_a_delivery_of_another_stays(queue: Queue) -> None:
    """The record is the same for both groups. Once both retry, both get the new message."""
    queue.join("a", "b")
    queue.send("x")
    (first,), (second,) = queue.read("a"), queue.read("b")
    queue.nack(first, delay_ms=60_000)
    assert queue.replace("x", due="+5") == 0
    queue.nack(second, delay_ms=90_000)
    assert queue.replace("x", body=b"new") == -queue.now_ms
    held = queue.contents()
    assert (held.retry, held.failures, held.owed) == ({}, {}, {"x": "a,b"})
    assert [d.body for d in (*queue.read("a"), *queue.read("b"))] == [b"new", b"new"]


def test_a_retry_of_which_another_group_is_done_stays(queue: Queue) -> None:
    """That group would handle the id twice in its dedup window."""
    queue.join("a", "b")
    queue.send("x")
    queue.ack(*queue.read("a"))
    queue.nack(*queue.read("b"), delay_ms=60_000)
    assert queue.replace("x") == 0


def test_a_repeat_does_not_undo_a_cancel(queue: Queue) -> None:
    """The reply to the first try was lost."""
    queue.send("a", due="+9000")
    queue.advance(10)
    assert queue.replace("a", due="+5000") < 0
    queue.advance(10)
    queue.cancel("a")
    assert queue.replace("a", due="+5000", tried_ms=11) == 0
    assert queue.contents().left == []


def test_a_repeat_does_not_undo_a_later_replacement(queue: Queue) -> None:
    """Nor a reschedule. It reports the message as replaced: its first try was carried out."""
    queue.send("a", due="+9000")
    queue.advance(10)
    queue.replace("a", due="+5000", body=b"first")
    queue.advance(10)
    queue.replace("a", due="+7000", body=b"second")
    due_ms = queue.now_ms + 7_000
    assert queue.replace("a", due="+5000", body=b"first", tried_ms=11) == -due_ms
    assert (_record(queue, "a").body, queue.contents().waiting) == (b"second", {"a": due_ms})
    queue.reschedule(("a", "+1000"))
    assert queue.replace("a", due="+7000", body=b"second", tried_ms=1) == -(queue.now_ms + 1_000)


def test_a_repeat_whose_first_try_was_lost_replaces(queue: Queue) -> None:
    """Also within the millisecond in which the former message was sent."""
    queue.send("a", due="+9000", body=b"former")
    assert queue.replace("a", due="+5000", body=b"new", tried_ms=0) == -(queue.now_ms + 5_000)
    queue.advance(10)
    assert queue.replace("a", due="+5000", body=b"newer", tried_ms=5) == -(queue.now_ms + 5_000)
    assert _record(queue, "a").body == b"newer"


def test_a_full_topic_takes_replacements(queue: Queue) -> None:
    """They take no room; a new id is refused, and with it the whole call."""
    queue.limit(max_messages=1)
    queue.send("a", due="+9000")
    assert queue.replace("a", due="+5") == -(queue.now_ms + 5)
    before = queue.contents()
    both = [Replacement(*outgoing("a", due="+7")), Replacement(*outgoing("b"))]
    with pytest.raises(QueueFull):
        queue.connection.call(producing.send(queue.keys, both, repeatable=False, now_ms=queue.now_ms))
    assert queue.contents() == before


def test_a_closed_shard_replaces_what_it_holds(queue: Queue) -> None:
    """An id that it does not know belongs to another shard."""
    queue.send("a", due="+9000")
    queue.connection.call(producing.close_shard(Layout("", "orders"), queue.keys))
    assert queue.replace("a", due="+5") == -(queue.now_ms + 5)
    with pytest.raises(Resharded):
        queue.replace("b")


def test_a_door_holds_it_back(queue: Queue) -> None:
    """Due now, it waits at the door of its topic."""
    queue.limit(paused=True)
    assert queue.replace("a") == queue.now_ms
    assert queue.replace("a", body=b"new") == -queue.now_ms
    held = queue.contents()
    assert (held.waiting, held.ready_ids) == ({"a": queue.now_ms}, [])


@pytest.mark.parametrize("state", ["parked", "retry"])
def test_a_parked_message_leaves_its_key(queue: Queue, state: str) -> None:
    """The index of parked messages has no member of it left, and its slot goes to the next of its key."""
    queue.limit(max_in_flight_per_key=1)
    queue.join("g")
    queue.send("holder", key="k")
    queue.promote()
    if state == "retry":
        queue.nack(*queue.read("g"), delay_ms=60_000)
    else:
        queue.send("b", key="k")
        queue.promote()
        assert queue.contents().parked
    queue.replace("holder" if state == "retry" else "b", due="+5000", key="other")
    held = queue.contents()
    assert (held.parked, held.busy) == ([], {} if state == "retry" else {"holder": "k"})
    queue.advance(5_000)
    queue.promote()
    assert "other" in queue.contents().busy.values()
    assert queue.tidy() == 0


def test_a_clock_that_is_set_back_finds_no_tombstone_of_a_live_message(queue: Queue) -> None:
    """The id was sent again after its window, and no sweep came by in between: it can still be replaced."""
    queue.policy = Policy(dedup_window_ms=1_000)
    queue.join("g")
    queue.send("a")
    queue.ack(*queue.read("g"))
    queue.advance(1_000)
    assert queue.replace("a", due="+60000") > 0
    queue.now_ms -= 500
    assert queue.contents().finished["a"] == 0
    assert queue.replace("a", due="+60000") < 0
