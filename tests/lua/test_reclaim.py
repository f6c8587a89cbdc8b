"""reclaim: abandoned deliveries go to retry, or to garbage."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from lisa_common.errors import NoGroup
from lisa_common.model.delivery import Delivery
from lisa_common.model.failure import Failure
from lisa_common.model.policy import Policy
from lisa_common.protocol.call import command
from lisa_common.protocol.managing import Reclaimed
from lisa_common.protocol.marking import StartMark
from support.queue import EPOCH_MS, PAUSE_MS, STEADY, Queue, ends_in, outgoing

LEASE_MS = STEADY.visibility_ms
NOTHING = Reclaimed("0-0", 0, 0, 0)
WORKER = "worker~"
"""A consumer that marks what begins."""


def test_only_after_the_visibility_timeout(queue: Queue) -> None:
    """A delivery is its consumer's for the visibility timeout, then it counts as failed."""
    queue.join("g")
    queue.send("a")
    (delivery,) = queue.read("g")
    queue.advance(LEASE_MS - PAUSE_MS)
    assert queue.reclaim("g") == NOTHING
    queue.advance(PAUSE_MS)
    assert queue.reclaim("g") == Reclaimed("0-0", 1, 0, 0)
    contents = queue.contents()
    assert contents.retry == {"g/a": queue.now_ms + 1_000}
    assert contents.groups["g"].pending == {}
    entry = delivery.entry.entry
    text = "not acked within the visibility timeout of 30000 ms"
    assert contents.failures["g/a"] == Failure(1, entry, None, EPOCH_MS, queue.now_ms, "abandoned", text)


def again(queue: Queue, begun: StartMark = StartMark.YES) -> Delivery:
    """Abandons what was read, and has a worker read its retry and begin."""
    queue.advance(LEASE_MS)
    queue.reclaim("g")
    queue.advance(600_000)
    queue.promote()
    (delivery,) = queue.read("g", WORKER)
    queue.mark(begun, delivery)
    return delivery


@pytest.mark.parametrize(("max_retries", "most"), [(0, 2), (1, 3), (2, 3), (3, 4)])
def test_no_attempts_left(queue: Queue, max_retries: int, most: int) -> None:
    """A message that kills its consumers ends in garbage, once it was alone when one died (promise 7)."""
    queue.join("g")
    queue.send("a", max_retries=max_retries)
    (first,) = queue.read("g")
    deliveries = [first, *(again(queue) for _ in range(most - 1))]
    assert [delivery.attempt for delivery in deliveries] == list(range(1, most + 1))
    assert not first.alone
    assert deliveries[-1].alone
    queue.advance(LEASE_MS)
    assert queue.reclaim("g") == Reclaimed("0-0", 0, 1, 0)
    assert queue.contents().garbage == {"g/a": queue.now_ms}
    assert queue.failure("g/a").reason == "abandoned"


def test_abandoned_twice_in_a_row(queue: Queue) -> None:
    """From the second time on, its deliveries are alone, until one ends otherwise."""
    queue.join("g")
    queue.send("a", max_retries=9)
    queue.read("g")
    assert [again(queue).alone for _ in range(4)] == [False, True, True, True]
    queue.advance(LEASE_MS)
    queue.reclaim("g")
    queue.advance(600_000)
    queue.promote()
    queue.nack(*queue.read("g", WORKER), delay_ms=0)
    queue.promote()
    (delivery,) = queue.read("g", WORKER)
    assert not delivery.alone
    assert not again(queue).alone


def test_abandoned_beside_others(queue: Queue) -> None:
    """A message that was alone in name only gets another chance, but not for ever."""
    queue.join("g")
    queue.send("a", max_retries=0)
    queue.read("g")
    for attempt in (2, 3, 4):
        delivery = again(queue)
        assert (delivery.attempt, delivery.alone) == (attempt, True)
        queue.mark(StartMark.BESIDE, delivery)
    queue.advance(LEASE_MS)
    assert queue.reclaim("g").garbage == 1


def test_not_begun(queue: Queue) -> None:
    """It is ready again at once, as the same attempt, for its group alone."""
    queue.join("g", "h")
    queue.send("a", max_retries=0)
    (delivery,) = queue.read("g", WORKER)
    queue.advance(LEASE_MS)
    assert queue.reclaim("g") == Reclaimed("0-0", 0, 0, 0, released=1)
    failure = queue.failure("g/a")
    assert (failure.attempts, failure.entry, failure.reason) == (0, delivery.entry.entry, "released")
    assert queue.ack(delivery) == ["late"]
    assert queue.read("g", WORKER) == []
    assert [d.attempt for d in queue.read("h")] == [1]


def test_not_begun_of_a_retry(queue: Queue) -> None:
    """It keeps its attempt, why there was a retry, and that it is to be alone."""
    queue.join("g")
    queue.send("a", max_retries=0)
    queue.read("g")
    delivery = again(queue, StartMark.NOT)
    for _ in range(2):
        queue.advance(LEASE_MS)
        assert queue.reclaim("g").released == 1
        assert queue.failure("g/a").reason == "isolated"
        (delivery,) = queue.read("g", WORKER)
        assert (delivery.attempt, delivery.alone) == (2, True)
    queue.release(delivery)
    (delivery,) = queue.read("g", WORKER)
    assert (delivery.attempt, delivery.alone) == (2, True)


def test_begun_after_all(queue: Queue) -> None:
    """What begins is marked, and then it counts; a mark takes nothing that was taken back."""
    queue.join("g")
    queue.send("a")
    (delivery,) = queue.read("g", WORKER)
    queue.mark(StartMark.YES, delivery)
    queue.advance(LEASE_MS)
    assert queue.reclaim("g").retry == 1
    queue.mark(StartMark.YES, delivery)
    assert queue.contents().groups["g"].pending == {}


def test_not_begun_and_cancelled_or_gone(queue: Queue) -> None:
    """Nothing is given back that nobody waits for."""
    queue.join("g")
    queue.send_all([outgoing("cancelled"), outgoing("deleted")])
    queue.read("g", WORKER)
    queue.cancel("cancelled")
    queue.connection.call(command("HDEL", queue.keys.of("messages"), "deleted"))
    queue.advance(LEASE_MS)
    assert queue.reclaim("g") == Reclaimed("0-0", 0, 0, 2)
    assert queue.contents().left == []


def test_large_messages_take_more_steps(queue: Queue) -> None:
    """A step reads 3 MiB at most, and one message at least."""
    queue.join("g")
    queue.send_all([outgoing(f"{n}", body=bytes(1_500_000)) for n in range(5)])
    queue.send("whole", body=bytes(5_000_000))
    queue.read("g")
    queue.advance(LEASE_MS)
    steps, cursor = [], "0-0"
    while not steps or cursor != "0-0":
        step = queue.reclaim("g", cursor=cursor)
        cursor = step.cursor
        steps.append(step.retry)
    assert steps == [2, 2, 1, 1]


def test_many_deliveries_take_more_steps(queue: Queue) -> None:
    """A step looks at 2,000 deliveries at most, also where none is to be taken back."""
    queue.join("g")
    for part in range(3):
        queue.send_all([outgoing(f"{part}-{n}") for n in range(1_000)])
        queue.read("g")
    step = queue.reclaim("g")
    assert (step.count, step.cursor != "0-0") == (0, True)
    assert queue.reclaim("g", cursor=step.cursor) == NOTHING


def test_another_visibility_timeout(queue: Queue) -> None:
    """Leases that were given under another policy are judged by that one."""
    queue.join("g")
    queue.send("a")
    queue.read("g")
    queue.advance(LEASE_MS)
    assert queue.reclaim("g", visibility_ms=2 * LEASE_MS) == NOTHING
    queue.advance(LEASE_MS)
    assert queue.reclaim("g", visibility_ms=2 * LEASE_MS).retry == 1
    assert queue.failure("g/a").error == "not acked within the visibility timeout of 60000 ms"


def test_bounded_steps(queue: Queue) -> None:
    """A step looks at a part of the pending list and says where to go on."""
    queue.join("g")
    queue.send_all([outgoing(f"{n}") for n in range(5)])
    queue.read("g")
    queue.advance(LEASE_MS)
    first = queue.reclaim("g", limit=2)
    assert (first.retry, first.cursor) != (2, "0-0")
    second = queue.reclaim("g", cursor=first.cursor, limit=2)
    third = queue.reclaim("g", cursor=second.cursor, limit=2)
    assert [step.retry for step in (first, second, third)] == [2, 2, 1]
    assert third.cursor == "0-0"


def test_leaves_no_consumer_behind(queue: Queue) -> None:
    """The manager does not appear among the consumers."""
    queue.join("g")
    queue.send("a")
    queue.read("g", "c")
    queue.advance(LEASE_MS)
    queue.reclaim("g")
    infos: list[list[bytes]] = queue.connection.call(command("XINFO", "CONSUMERS", queue.keys.of("ready"), "g"))
    assert [info[1] for info in infos] == [b"c"]


@pytest.mark.parametrize("name", ["lisa-manager", "manager"])
def test_a_consumer_may_have_any_name(queue: Queue, name: str) -> None:
    """Whatever a consumer is called, a reclaim leaves alone what it has (promise 2)."""
    queue.join("g")
    queue.send("a")
    (delivery,) = queue.read("g", name)
    queue.reclaim("g")
    assert queue.contents().groups["g"].pending == {delivery.entry.entry: name}


def test_cancelled_meanwhile(queue: Queue) -> None:
    """A cancelled message is not retried, and its id is free."""
    queue.join("g")
    queue.send("a")
    queue.read("g")
    queue.cancel("a")
    queue.advance(LEASE_MS)
    assert queue.reclaim("g") == Reclaimed("0-0", 0, 0, 1)
    assert queue.contents().left == []


@pytest.mark.parametrize(("on_expire", "counts"), [("garbage", (0, 1, 0)), ("drop", (0, 0, 1))])
def test_expired_meanwhile(queue: Queue, on_expire: str, counts: tuple[int, int, int]) -> None:
    """What expired while it was abandoned is not retried (promise 8)."""
    queue.policy = Policy.of({"on_expire": on_expire})
    queue.join("g")
    queue.send("a", ttl_ms=100)
    queue.read("g")
    queue.advance(LEASE_MS)
    assert queue.reclaim("g") == Reclaimed("0-0", *counts, expired=counts[1])
    assert queue.contents().retry == {}


def test_entries_deleted_from_the_stream(queue: Queue) -> None:
    """Pending entries that somebody deleted are let go of. A late ack is stale: the message may be ready again."""
    queue.join("g")
    queue.send_all([outgoing("a"), outgoing("b")])
    a, _ = queue.read("g")
    queue.connection.call(command("XDEL", queue.keys.of("ready"), a.entry.entry))
    queue.advance(LEASE_MS)
    assert queue.reclaim("g") == Reclaimed("0-0", 1, 0, 1)
    assert queue.contents().groups["g"].pending == {}
    assert queue.ack(a) == ["stale"]


def test_foreign_entries(queue: Queue) -> None:
    """Entries that are none of ours, or make no sense, are let go of."""
    queue.join("g")
    ready = queue.keys.of("ready")
    for fields in (("x", "y"), ("id", "a"), ("id", "a", "due", "soon", "n", "1"), ("id", "a", "due", "1", "n", "1")):
        queue.connection.call(command("XADD", ready, "*", *fields))
    assert len(queue.take("g")) == 4
    queue.advance(LEASE_MS)
    assert queue.reclaim("g") == Reclaimed("0-0", 0, 0, 4)
    assert queue.contents().left == []
    assert queue.contents().groups["g"].pending == {}


def test_another_groups_retry(queue: Queue) -> None:
    """A retry of another group that a dead consumer had read, but not passed over, is let go of."""
    queue.join("g", "h")
    queue.send("a")
    queue.nack(*queue.read("g"), delay_ms=0)
    queue.promote()
    queue.ack(*queue.judge("h", queue.take("h", limit=1)))
    queue.take("h")
    queue.advance(LEASE_MS)
    assert queue.reclaim("h") == Reclaimed("0-0", 0, 0, 1)
    assert [d.attempt for d in queue.read("g")] == [2]


def test_a_deleted_record(queue: Queue) -> None:
    """A message whose record somebody deleted is let go of."""
    queue.join("g")
    queue.send("a")
    queue.read("g")
    queue.connection.call(command("HDEL", queue.keys.of("messages"), "a"))
    queue.advance(LEASE_MS)
    assert queue.reclaim("g") == Reclaimed("0-0", 0, 0, 1)
    assert queue.contents().left == []


def test_wake_for_an_earlier_retry(queue: Queue, wakes: Callable[[], list[str]]) -> None:
    """A reclaim publishes when it made the earliest retry."""
    queue.join("g")
    queue.send("a")
    queue.read("g")
    queue.advance(LEASE_MS)
    wakes()
    queue.reclaim("g")
    assert wakes() == [f"orders {queue.now_ms + 1_000}"]


def test_without_the_group(queue: Queue) -> None:
    """A group that is gone is an error of its own."""
    with pytest.raises(NoGroup):
        queue.reclaim("g")
    queue.join("h")
    with pytest.raises(NoGroup):
        queue.reclaim("g")


def test_thousand_at_once(queue: Queue) -> None:
    """1,000 deliveries in one step."""
    queue.join("g", "h")
    queue.send_all([outgoing(f"{n}") for n in range(1_000)])
    queue.read("g")
    queue.advance(LEASE_MS)
    assert queue.reclaim("g", limit=1_000).retry == 1_000
    assert len(queue.contents().retry) == 1_000


def test_a_mark_holds_for_entries_before_it(queue: Queue) -> None:
    """Of one worker, and of no other; whatever becomes of the entry that was marked."""
    queue.join("g")
    queue.send_all([outgoing(id) for id in "abcde"])
    deliveries = queue.read("g", WORKER)
    queue.send_all([outgoing(id) for id in "xy"])
    queue.read("g", "other~")
    queue.mark(StartMark.YES, deliveries[2])
    queue.advance(LEASE_MS)
    assert queue.reclaim("g") == Reclaimed("0-0", 3, 0, 0, released=4)
    assert queue.contents().retry.keys() == {"g/a", "g/b", "g/c"}


def test_a_mark_says_nothing_of_what_is_to_run_alone(queue: Queue) -> None:
    """It begins out of turn: neither is it begun by another's mark, nor others by its own."""
    queue.join("g")
    queue.send("alone", max_retries=0)
    queue.read("g")
    again(queue, StartMark.NOT)
    queue.send("later")
    (later,) = queue.read("g", WORKER)
    queue.mark(StartMark.YES, later)
    queue.advance(LEASE_MS)
    assert queue.reclaim("g") == Reclaimed("0-0", 1, 0, 0, released=1)
    queue.ack(*queue.read("g", WORKER))
    queue.send("before")
    queue.send("poison", max_retries=0)
    before, poison = queue.read("g", WORKER)
    queue.mark(StartMark.ALONE, poison)
    queue.advance(LEASE_MS)
    assert queue.reclaim("g").released == 1
    assert queue.ack(before) == ["late"]


def test_a_mark_outlives_the_lease_that_carries_it(queue: Queue) -> None:
    """Entries before it may have been renewed since: they have begun all the same."""
    queue.join("g")
    queue.send_all([outgoing(id) for id in "abcd"])
    deliveries = queue.read("g", WORKER)
    queue.mark(StartMark.YES, deliveries[2])
    queue.advance(LEASE_MS // 2)
    queue.extend(WORKER, *deliveries[:2], deliveries[3])
    queue.advance(LEASE_MS // 2)
    assert queue.reclaim("g").retry == 1
    queue.advance(LEASE_MS // 2 + PAUSE_MS)
    assert queue.reclaim("g") == Reclaimed("0-0", 2, 0, 0, released=1)
    assert queue.contents().retry.keys() == {"g/a", "g/b", "g/c"}


@pytest.mark.parametrize("max_retries", [0, 2])
def test_lent_deliveries_are_retried_at_once_and_never_alone(queue: Queue, max_retries: int) -> None:
    """Nothing delays the retries of what was lent, no delivery runs alone, and the last retry is the last."""
    queue.join("g")
    queue.send("a", max_retries=max_retries)
    for attempt in range(1, max_retries + 2):
        (delivery,) = queue.read("g")
        assert (delivery.attempt, delivery.alone) == (attempt, False)
        assert queue.lend("c", delivery, lease_ms=LEASE_MS // 2) == [True]
        queue.advance(LEASE_MS // 4)
        reclaimed = queue.reclaim("g")
        assert replace(reclaimed, next_in_ms=None) == NOTHING
        assert ends_in(reclaimed, LEASE_MS // 4)
        queue.advance(LEASE_MS // 4)
        is_last = attempt > max_retries
        assert queue.reclaim("g") == Reclaimed("0-0", not is_last, is_last, 0)
        assert queue.contents().retry == ({} if is_last else {"g/a": queue.now_ms})
        queue.promote()
    assert queue.contents().failures["g/a"].reason == "abandoned"


def test_marks_of_many_entries_are_looked_at_in_parts(queue: Queue) -> None:
    """Each worker has a thousand, among which the last mark is looked for."""
    queue.join("g")
    workers = [f"{n}{WORKER}" for n in range(12)]
    for n in range(12):
        queue.send_all([outgoing(f"{n}-{i}") for i in range(1_001)])
    for limit in (1, 1_000):
        for worker in workers:
            queue.take("g", worker, limit=limit)
    queue.advance(LEASE_MS)
    first = queue.reclaim("g", limit=1_000)
    assert 1 <= first.released <= 11
    assert queue.reclaim("g", cursor=first.cursor, limit=1_000).released >= 1
