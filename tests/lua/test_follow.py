"""follow: the ack of a delivery, and the message that follows it, in one step."""

from collections.abc import Callable

import pytest

from lisa_common.model.delivery import Delivery
from lisa_common.model.record import Record, unpack_record
from lisa_common.model.sharding import Layout
from lisa_common.protocol import consuming, producing
from lisa_common.protocol.call import command
from support.queue import Queue, outgoing


def _delivered(queue: Queue, id: str = "a", *groups: str, **options: object) -> Delivery:
    queue.join(*(groups or ("g",)))
    queue.send(id, **options)
    (delivery,) = queue.read((groups or ("g",))[0])
    return delivery


def test_the_next_message_has_the_same_id(queue: Queue) -> None:
    """Nothing of the former message is left, and its id is taken all the time; no tombstone tells of an end."""
    former = _delivered(queue, ttl_ms=9_000, priority=3)
    queue.advance(10)
    assert queue.follow(former, outgoing("a", due="+2000", body=b"next")) == "acked"
    due_ms = queue.now_ms + 2_000
    held = queue.contents()
    assert unpack_record(held.records["a"]) == Record(queue.now_ms, due_ms, b"next", None, None, 0, {})
    assert (held.waiting, held.left) == ({"a": due_ms}, ["waiting", "records"])
    assert held.groups["g"].pending == {}
    assert queue.send("a") == 0


def test_a_chain_goes_on(queue: Queue) -> None:
    """Each delivery is the first of its message; a plain ack ends the chain, and opens the dedup window."""
    _delivered(queue, "a")
    queue.advance(3_600_000)
    queue.reclaim("g")
    queue.advance(3_600_000)
    queue.promote()
    for turn in range(3):
        (delivery,) = queue.read("g")
        assert delivery.attempt == (2 if turn == 0 else 1)
        assert queue.follow(delivery, outgoing("a", due="+50", body=b"%d" % turn)) == "acked"
        queue.advance(50)
        queue.promote()
    (last,) = queue.read("g")
    assert (last.body, queue.ack(last)) == (b"2", ["acked"])
    assert queue.contents().left == ["finished"]


@pytest.mark.parametrize("due", ["+0", "+60"])
def test_a_repeated_ack_is_stale(queue: Queue, due: str) -> None:
    """Also where all happens in one millisecond: the message that follows is not taken for the one that was acked."""
    former = _delivered(queue)
    assert queue.follow(former, outgoing("a", due=due, body=b"next")) == "acked"
    before = queue.contents()
    assert queue.follow(former, outgoing("a", due=due, body=b"next")) == "stale"
    assert queue.ack(former) == ["stale"]
    assert queue.contents() == before
    queue.advance(60)
    queue.promote()
    (delivery,) = queue.read("g")
    assert queue.follow(former, outgoing("a", due=due)) == "stale"
    assert (delivery.body, queue.ack(delivery)) == (b"next", ["acked"])


def test_due_now_it_is_ready_at_once(queue: Queue) -> None:
    """For all groups."""
    former = _delivered(queue, "a", "g")
    queue.join("h")
    queue.advance(1)
    assert queue.follow(former, outgoing("a", body=b"next")) == "acked"
    held = queue.contents()
    assert (held.waiting, held.owed) == ({}, {"a": "g,h"})
    assert [d.body for d in (*queue.read("g"), *queue.read("h"))] == [b"next", b"next"]


def test_a_late_ack_sends_it(queue: Queue) -> None:
    """The retry is withdrawn; the message that follows takes its place."""
    former = _delivered(queue)
    queue.advance(3_600_000)
    queue.reclaim("g")
    assert queue.follow(former, outgoing("a", due="+5")) == "late"
    held = queue.contents()
    assert (held.waiting, held.retry, held.failures) == ({"a": queue.now_ms + 5}, {}, {})


def test_a_stale_ack_sends_nothing(queue: Queue) -> None:
    """A newer delivery has begun: what follows is its matter."""
    former = _delivered(queue)
    queue.advance(3_600_000)
    queue.reclaim("g")
    queue.advance(3_600_000)
    queue.promote()
    (newer,) = queue.read("g")
    assert queue.follow(former, outgoing("a", due="+5")) == "stale"
    assert queue.follow(newer, outgoing("a", due="+5")) == "acked"


def test_a_cancel_ends_the_chain(queue: Queue) -> None:
    """A message that was cancelled while it was handled has no successor, whatever its id."""
    for next_id in ("a", "b"):
        former = _delivered(queue)
        assert queue.cancel("a") == ["delivered"]
        assert queue.follow(former, outgoing(next_id, due="+5")) == "cancelled"
        held = queue.contents()
        assert (held.left, held.groups["g"].pending) == (["finished"], {})
        queue.advance(queue.policy.dedup_window_ms)


def test_while_another_group_owes_the_id_nothing_changes(queue: Queue) -> None:
    """The record is still needed. The last group may use the id again."""
    first = _delivered(queue, "x", "a", "b")
    before = queue.contents()
    assert queue.follow(first, outgoing("x", due="+5")) == "owed"
    assert queue.contents() == before
    queue.ack(*queue.read("b"))
    assert queue.follow(first, outgoing("x", due="+5")) == "acked"
    held = queue.contents()
    assert (held.waiting, held.owed) == ({"x": queue.now_ms + 5}, {})


def test_another_id_is_one_message_for_all_groups(queue: Queue) -> None:
    """The second group to name it sends nothing, and is told so."""
    first = _delivered(queue, "1", "a", "b")
    (second,) = queue.read("b")
    assert queue.follow(first, outgoing("2", due="+5", body=b"of a")) == "acked"
    assert queue.contents().owed == {"1": "b"}
    assert queue.follow(second, outgoing("2", due="+9", body=b"of b")) == "duplicate"
    held = queue.contents()
    assert (set(held.records), held.waiting, set(held.finished)) == ({"2"}, {"2": queue.now_ms + 5}, {"1"})
    assert queue.follow(second, outgoing("3")) == "stale"


def test_a_known_id_is_a_duplicate(queue: Queue) -> None:
    """Within its dedup window, as for a send."""
    queue.ack(_delivered(queue, "b"))
    assert queue.follow(_delivered(queue, "a"), outgoing("b")) == "duplicate"
    assert set(queue.contents().finished) == {"a", "b"}


def test_a_full_topic_has_room_for_what_follows(queue: Queue) -> None:
    """It takes the room of the message that ends; where another group still owes that, there is none."""
    first = _delivered(queue, "x", "a", "b")
    queue.limit(max_messages=1)
    before = queue.contents()
    assert queue.follow(first, outgoing("y", due="+5")) == "full"
    assert queue.contents() == before
    queue.ack(*queue.read("b"))
    assert queue.follow(first, outgoing("y", due="+5")) == "acked"


def test_a_closed_shard_takes_the_same_id_only(queue: Queue) -> None:
    """It knows that id; another one belongs to a new shard."""
    former = _delivered(queue)
    queue.connection.call(producing.close_shard(Layout("", "orders"), queue.keys))
    assert queue.follow(former, outgoing("b", due="+5")) == "resharded"
    assert queue.follow(former, outgoing("a", due="+5")) == "acked"


def test_the_slot_of_its_key_passes_on(queue: Queue) -> None:
    """The message that follows queues behind those of its key."""
    queue.limit(max_in_flight_per_key=1)
    queue.join("g")
    queue.send("a", key="k")
    queue.send("b", key="k")
    queue.promote()
    (first,) = queue.read("g")
    queue.advance(10)
    assert queue.follow(first, outgoing("a", key="k")) == "acked"
    queue.promote()
    (second,) = queue.read("g")
    assert (first.id, second.id, queue.contents().busy) == ("a", "b", {"b": "k"})
    queue.ack(second)
    queue.promote()
    assert [delivery.id for delivery in queue.read("g")] == ["a"]
    assert queue.tidy() == 0


def test_a_door_holds_it_back(queue: Queue) -> None:
    """A paused topic goes on where it was; managers that wait for the end of a delivery are woken."""
    queue.limit(max_in_flight=1)
    queue.join("g")
    queue.send("a")
    queue.send("b")
    queue.promote()
    (first,) = queue.read("g")
    queue.promote()
    assert queue.door()["held"] == "1"
    assert queue.follow(first, outgoing("a")) == "acked"
    assert "held" not in queue.door()
    assert set(queue.contents().waiting) == {"a", "b"}


def test_managers_wake_for_the_next_message(queue: Queue, wakes: Callable[[], list[str]]) -> None:
    """If nothing else is due before."""
    former = _delivered(queue)
    wakes()
    queue.follow(former, outgoing("a", due="+2000"))
    assert wakes() == [f"orders {queue.now_ms + 2_000}"]


def test_a_call_ends_where_its_work_does(queue: Queue) -> None:
    """Large messages take several calls; each delivery is acked with its own."""
    queue.join("g")
    queue.send_all([outgoing(f"m{n}", body=b"x" * 1_000_000) for n in range(9)])
    deliveries = queue.read("g")
    queue.advance(1)
    followed = [(each.entry, outgoing(each.id, due="+5", body=each.id.encode())) for each in deliveries]
    outcomes = queue.connection.call(consuming.follow(queue.keys, "g", followed, queue.policy, now_ms=queue.now_ms))
    assert outcomes == ["acked"] * 9
    assert queue.contents().waiting == dict.fromkeys((f"m{n}" for n in range(9)), queue.now_ms + 5)


def test_a_message_without_a_record_is_followed(queue: Queue) -> None:
    """Somebody has deleted it while it was handled; the chain goes on."""
    former = _delivered(queue)
    queue.connection.call(command("HDEL", queue.keys.of("messages"), "a"))
    assert queue.follow(former, outgoing("a", due="+5")) == "acked"
    assert queue.contents().waiting == {"a": queue.now_ms + 5}
