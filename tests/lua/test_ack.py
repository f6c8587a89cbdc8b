"""ack: acked, late or stale."""

from collections.abc import Callable

import pytest
import redis

from lisa_common.model.delivery import Delivery
from lisa_common.model.policy import Policy
from lisa_common.protocol.consuming import AckOutcome
from support.queue import EPOCH_MS, STEADY, Queue, outgoing

ACKED, LATE, STALE = AckOutcome.ACKED, AckOutcome.LATE, AckOutcome.STALE


def test_acked_is_forgotten(queue: Queue) -> None:
    """Only a chosen id leaves a trace, for its dedup window; nothing is pending."""
    queue.join("g")
    queue.send_all([outgoing("a", ttl_ms=99), outgoing("made~", ttl_ms=99)])
    assert queue.ack(*queue.read("g")) == [ACKED, ACKED]
    contents = queue.contents()
    assert contents.left == ["finished"]
    assert contents.finished == {"a": EPOCH_MS + STEADY.dedup_window_ms}
    assert contents.groups["g"].pending == {}


def test_without_a_window_no_trace_is_left(queue: Queue) -> None:
    """A dedup window of 0 forgets chosen ids at ack."""
    queue.policy = Policy(dedup_window_ms=0)
    queue.join("g")
    queue.send("a")
    queue.ack(*queue.read("g"))
    assert queue.contents().left == []


def test_second_ack_is_stale(queue: Queue) -> None:
    """A delivery is acked once; the second ack changes nothing (promise 5), even if the id lives again."""
    queue.policy = Policy(dedup_window_ms=0)
    queue.join("g")
    queue.send("a")
    old = queue.read("g")
    queue.ack(*old)
    assert queue.ack(*old) == [STALE]
    queue.advance(1)
    queue.send("a")
    (new,) = queue.read("g")
    before = queue.contents()
    assert queue.ack(*old) == [STALE]
    assert queue.contents() == before
    assert queue.ack(new) == [ACKED]


def test_one_delivery_twice_in_a_batch(queue: Queue) -> None:
    """Naming a delivery twice is no harm: it is acked."""
    queue.join("g")
    queue.send("a")
    (delivery,) = queue.read("g")
    assert queue.ack(delivery, delivery)[0] == ACKED
    assert queue.contents().left == ["finished"]


@pytest.mark.parametrize("place", ["retry", "garbage"])
def test_what_a_killed_server_put_back_ends_with_the_ack(queue: Queue, client: redis.Redis, place: str) -> None:
    """It has lost the promotion or the replay: the copy is where it was, and the delivery that followed is acked."""
    queue.join("g")
    queue.send("a")
    queue.nack(*queue.read("g"), rejected=place == "garbage")
    before: list[bytes] = [client.dump(queue.keys.of(name)) for name in (place, "failures")]  # type: ignore[misc]
    queue.advance(1_000_000)
    queue.replay("g/a") if place == "garbage" else queue.promote()
    (delivery,) = queue.read("g")
    client.xack(queue.keys.of("ready"), "g", delivery.entry.entry)
    client.xdel(queue.keys.of("ready"), delivery.entry.entry)
    for name, dump in zip((place, "failures"), before, strict=True):
        client.restore(queue.keys.of(name), 0, dump, replace=True)
    assert queue.ack(delivery) == [ACKED]
    assert queue.contents().left == ["finished"]


def test_late_while_the_retry_waits(queue: Queue) -> None:
    """An ack after the reclaim, before the retry is due, withdraws the retry (promise 4)."""
    queue.join("g")
    queue.send("a")
    (delivery,) = queue.read("g")
    queue.advance(STEADY.visibility_ms)
    queue.reclaim("g")
    assert queue.ack(delivery) == [LATE]
    contents = queue.contents()
    assert contents.left == ["finished"]
    queue.advance(1_000)
    assert queue.promote().count == 0
    assert queue.read("g") == []


def test_late_while_the_retry_is_ready_unread(queue: Queue) -> None:
    """An ack after the retry was promoted, before anyone read it, takes its entry out of the stream."""
    queue.join("g")
    queue.send("a")
    (delivery,) = queue.read("g")
    queue.nack(delivery, delay_ms=0)
    queue.promote()
    assert queue.contents().ready_ids == ["a", "a"]
    assert queue.ack(delivery) == [LATE]
    contents = queue.contents()
    assert contents.left == ["finished"]
    assert contents.ready_ids == ["a"]
    assert queue.read("g") == []


def test_late_in_garbage(queue: Queue) -> None:
    """An ack of the last delivery, after it was given up for good, takes the message out of garbage."""
    queue.join("g")
    queue.send("a", max_retries=0)
    (delivery,) = queue.read("g")
    queue.advance(STEADY.visibility_ms)
    queue.reclaim("g")
    queue.advance(60_000)
    queue.promote()
    (delivery,) = queue.read("g")
    queue.advance(STEADY.visibility_ms)
    assert queue.reclaim("g").garbage == 1
    assert queue.ack(delivery) == [LATE]
    assert queue.contents().left == ["finished"]


def test_stale_once_a_newer_delivery_has_begun(queue: Queue) -> None:
    """While another consumer has the retry, an ack of the first delivery changes nothing (promise 5)."""
    queue.join("g")
    queue.send("a")
    (first,) = queue.read("g", "c1")
    queue.nack(first, delay_ms=0)
    queue.promote()
    (second,) = queue.read("g", "c2")
    before = queue.contents()
    assert queue.ack(first) == [STALE]
    assert queue.contents() == before
    assert queue.ack(second) == [ACKED]
    assert queue.ack(second) == [STALE]


def test_stale_after_the_second_failure(queue: Queue) -> None:
    """Only the last delivery can be acked late, not one before it."""
    queue.join("g")
    queue.send("a")
    (first,) = queue.read("g")
    queue.nack(first, delay_ms=0)
    queue.promote()
    (second,) = queue.read("g")
    queue.nack(second, delay_ms=50)
    before = queue.contents()
    assert queue.ack(first) == [STALE]
    assert queue.contents() == before
    assert queue.ack(second) == [LATE]


@pytest.mark.parametrize("apart_ms", [0, 1])
def test_a_mixed_batch_is_judged_one_by_one(queue: Queue, *, apart_ms: int) -> None:
    """Outcomes come in the order of the deliveries, which were due together or not."""
    queue.join("g")
    names = ("stale", "acked", "late", "retried")
    queue.send_all([outgoing(id, due=f"+{number * apart_ms}") for number, id in enumerate(names)])
    queue.advance(len(names))
    queue.promote()
    stale, acked, late, retried = queue.read("g")
    queue.ack(stale)
    queue.nack(late, delay_ms=10)
    queue.nack(retried, delay_ms=0)
    queue.promote()
    (newer,) = queue.read("g")
    assert queue.ack(stale, acked, late, retried, newer) == [STALE, ACKED, LATE, STALE, ACKED]
    contents = queue.contents()
    assert contents.left == ["finished"]
    assert contents.finished.keys() == {"stale", "acked", "late", "retried"}


def test_two_groups_owe(queue: Queue) -> None:
    """The record lives until the last group has acked; each group's second ack is stale."""
    queue.join("g", "h")
    queue.send("a", ttl_ms=99)
    (in_g,), (in_h,) = queue.read("g"), queue.read("h")
    assert queue.ack(in_g) == [ACKED]
    contents = queue.contents()
    assert contents.owed == {"a": "h"}
    assert contents.left == ["records", "expiring", "finished", "owed"]
    assert queue.ack(in_g) == [STALE]
    assert queue.contents() == contents
    assert queue.ack(in_h) == [ACKED]
    assert queue.contents().left == ["finished"]


def test_one_group_acks_what_another_retries(queue: Queue) -> None:
    """An ack in one group leaves another group's failure as it is."""
    queue.join("g", "h")
    queue.send("a")
    (in_g,), (in_h,) = queue.read("g"), queue.read("h")
    queue.nack(in_g, delay_ms=10)
    queue.ack(in_h)
    contents = queue.contents()
    assert contents.left == ["records", "finished", "owed", "retry", "failures"]
    assert contents.owed == {"a": "g"}


def test_released_and_acked(queue: Queue) -> None:
    """A delivery that was given back can be acked while nobody has it."""
    queue.join("g")
    queue.send("a")
    (delivery,) = queue.read("g")
    queue.release(delivery)
    assert queue.ack(delivery) == [LATE]
    assert queue.read("g") == []


def test_old_ack_spares_the_cancelled_record_of_a_later_message(queue: Queue) -> None:
    """A cancelled message that is still out there is not ended by an ack of its predecessor (promise 5)."""
    queue.policy = Policy(dedup_window_ms=0)
    queue.join("g")
    queue.send("a")
    (old,) = queue.read("g")
    queue.ack(old)
    queue.advance(1)
    queue.send("a")
    (new,) = queue.read("g")
    queue.cancel("a")
    before = queue.contents()
    assert queue.ack(old) == [STALE]
    assert queue.contents() == before
    assert queue.ack(new) == [ACKED]
    assert queue.contents().left == []


@pytest.mark.parametrize("end", ["purged", "cancelled"])
def test_old_ack_spares_a_later_message_due_at_the_same_time(queue: Queue, end: str) -> None:
    """An absolute due time may be that of an earlier message; what was delivered of that one is told by its age."""
    queue.join("g")
    queue.send_as_before("a", EPOCH_MS, max_retries=0)
    (old,) = queue.read("g")
    if end == "cancelled":
        queue.cancel("a")
        queue.advance(STEADY.visibility_ms)
        queue.reclaim("g")
    else:
        queue.nack(old, rejected=True)
        queue.purge("g/a")
    queue.catch_up()
    queue.send_as_before("a", EPOCH_MS, body=b"new")
    before = queue.contents()
    assert queue.ack(old) == [STALE]
    assert queue.contents() == before
    (new,) = queue.read("g")
    assert new.body == b"new"
    assert queue.ack(old, new) == [STALE, ACKED]
    assert queue.contents().left == ["finished"]


@pytest.mark.parametrize("field", ["due_ms", "id"])
def test_what_was_never_delivered_is_stale(queue: Queue, field: str) -> None:
    """An ack of an entry that does not exist, or is another message's, changes nothing."""
    queue.join("g")
    queue.send("a")
    (delivery,) = queue.read("g")
    wrong: dict[str, object] = {"due_ms": 1, "id": "b"}
    entry = delivery.entry._replace(entry=f"{EPOCH_MS}-5", **{field: wrong[field]})  # type: ignore[arg-type]
    assert queue.ack(delivery._replace(entry=entry)) == [STALE]
    assert queue.contents().left == ["records"]


def test_thousand_at_once(queue: Queue) -> None:
    """1,000 acks in one call, with two groups, time to live, and one of them stale."""
    queue.join("g", "h")
    queue.send_all([outgoing(f"{n}", ttl_ms=5_000) for n in range(1_000)])
    in_g, in_h = queue.read("g"), queue.read("h")
    assert queue.ack(*in_g) == [ACKED] * 1_000
    queue.ack(in_h[7])
    assert queue.ack(*in_h).count(STALE) == 1
    contents = queue.contents()
    assert contents.left == ["finished"]
    assert len(contents.finished) == 1_000


def _lost_promotion(queue: Queue, *groups: str) -> Delivery:
    """A delivery to the first group, of a message whose promotion the server has lost: it waits again."""
    queue.join(*groups)
    queue.send("a", due="+100")
    dumps = queue.dump()
    queue.advance(100)
    queue.promote()
    (delivery,) = queue.read(groups[0])
    queue.restore(dumps)
    return delivery


@pytest.mark.parametrize("place", ["waiting", "garbage"])
def test_an_ack_of_a_lost_promotion_leaves_the_message_to_the_other_groups(queue: Queue, place: str) -> None:
    """A killed server has lost the promotion, or the replay, for all groups. The ack of one ends only its own copy."""
    queue.join("g", "h", "i")
    queue.send("a", due="+100", ttl_ms=99)
    if place == "garbage":
        queue.advance(200)
        queue.sweep()
    dumps = queue.dump()
    queue.advance(150)
    queue.replay("/a") if place == "garbage" else queue.promote()
    (in_g,), (in_h,) = queue.read("g"), queue.read("h")
    queue.restore(dumps)
    assert queue.contents().left[0] == ("waiting" if place == "waiting" else "records")
    assert queue.ack(in_g) == [ACKED]
    assert queue.contents().owed == {"a": "h,i"}
    assert queue.ack(in_h) == [ACKED]
    contents = queue.contents()
    assert contents.owed == {"a": "i"}
    assert contents.ready_ids == ["a"]
    assert contents.failures.keys() == {"i/a"}
    assert not {"waiting", "garbage"} & set(contents.left)
    assert queue.promote().count == 0
    assert [queue.read("g"), queue.read("h")] == [[], []]
    if place == "waiting":
        assert queue.ack(*queue.read("i")) == [ACKED]
    else:
        # The replay had taken its time to live away, and is lost.
        assert queue.read("i") == []
        assert queue.contents().garbage.keys() == {"i/a"}


def test_an_ack_of_a_lost_promotion_passes_no_door(queue: Queue, wakes: Callable[[], list[str]]) -> None:
    """The other groups get the message once the limits of the topic let it pass."""
    queue.join("g", "h")
    queue.limit(max_in_flight=1)
    queue.send("a", due="+100")
    dumps = queue.dump()
    queue.advance(100)
    queue.promote()
    (delivery,) = queue.read("g")
    queue.restore(dumps)
    queue.send("b", priority=1)
    queue.promote()
    assert queue.contents().ready_ids == ["b"]
    wakes()
    assert queue.ack(delivery) == [ACKED]
    assert wakes() == ["orders 0"]
    contents = queue.contents()
    assert contents.ready_ids == ["b"]
    assert (contents.owed["a"], contents.retry.keys(), "waiting" in contents.left) == ("h", {"h/a"}, False)
    for group in ("g", "h"):
        queue.ack(*queue.read(group))
    assert queue.promote().count == 1
    assert [(d.id, d.attempt) for d in queue.read("h")] == [("a", 1)]
    assert queue.read("g") == []


def test_an_ack_of_a_lost_promotion_ends_the_message_of_the_only_group(queue: Queue) -> None:
    """It no longer waits, so no entry without a record follows."""
    assert queue.ack(_lost_promotion(queue, "g")) == [ACKED]
    contents = queue.contents()
    assert contents.left == ["finished"]
    assert contents.ready_ids == []


@pytest.mark.parametrize("groups", ["g", "gh"])
@pytest.mark.parametrize("state", ["ready", "delivered"])
def test_an_ack_of_a_lost_promotion_is_stale_once_the_message_is_ready_again(
    queue: Queue, groups: str, state: str
) -> None:
    """The group gets it anew, so no ack may have been taken before (promise 4)."""
    delivery = _lost_promotion(queue, *groups)
    queue.advance(100)
    queue.promote()
    again = queue.read("g") if state == "delivered" else []
    assert queue.ack(delivery) == [STALE]
    again = again or queue.read("g")
    assert queue.ack(*again) == [ACKED]
    for group in groups[1:]:
        assert queue.ack(*queue.read(group)) == [ACKED]
    assert queue.contents().left == ["finished"]


def test_an_ack_of_a_lost_promotion_is_stale_where_no_entry_can_be_added(queue: Queue, client: redis.Redis) -> None:
    """Other groups could not get the message, so it stays where it is, for all of them."""
    delivery = _lost_promotion(queue, "g", "h")
    client.xadd(queue.keys.of("ready"), {"x": "y"}, id="18446744073709551615-18446744073709551615")
    before = queue.contents()
    assert queue.ack(delivery) == [STALE]
    assert queue.contents() == before


def test_each_message_of_a_batch_has_groups_of_its_own(queue: Queue) -> None:
    """A group that joins later gets later messages only."""
    queue.join("f", "g")
    queue.send_all([outgoing("a"), outgoing("b")])
    queue.join("h")
    queue.send_all([outgoing("c"), outgoing("d")])
    a, b, c, d = queue.read("g")
    assert queue.ack(a, c, b, d) == ["acked"] * 4
    assert queue.contents().owed == {"a": "f", "b": "f", "c": "f,h", "d": "f,h"}
    assert queue.ack(a, c, b, d) == ["stale"] * 4
