"""The door: what a topic's limits let become ready, and when to come again."""

import json
from collections.abc import Callable

import pytest
import redis

from lisa_common.errors import QueueFull
from lisa_common.model.sharding import Layout
from lisa_common.protocol import producing
from lisa_common.protocol.managing import PAUSED, TOO_MANY_IN_FLIGHT, Promoted
from support.queue import EPOCH_MS, Queue, outgoing

Wakes = Callable[[], list[str]]


def _send(queue: Queue, count: int, *, due: str = "+0") -> None:
    queue.send_all([outgoing(f"m{n:05}", due=due) for n in range(count)])


def test_an_open_topic_has_no_door(queue: Queue, client: redis.Redis) -> None:
    """Limits that are taken away leave nothing behind."""
    queue.limit(paused=True, rate="10/s", max_in_flight=3)
    queue.limit()
    assert not client.exists(queue.keys.of("door"))
    queue.send("a")
    assert queue.contents().ready_ids == ["a"]


def test_paused(queue: Queue, wakes: Wakes) -> None:
    """Nothing becomes ready: not by send, promotion, retry, release, replay or reclaim. What is ready is delivered."""
    queue.join("g")
    for id in ("ready", "nacked", "released", "rejected", "abandoned"):
        queue.send(id)
    ready, *held = queue.read("g")
    queue.nack(held[0], delay_ms=5)
    queue.nack(held[2], rejected=True)
    queue.send("read later")
    queue.limit(paused=True)
    before = queue.contents().ready_ids
    queue.send("immediate")
    queue.send("later", due="+10")
    queue.release(held[1])
    assert queue.replay("g/rejected") == ["replayed"]
    queue.advance(10)
    assert queue.promote() == Promoted(queue.now_ms * 1000, 0, EPOCH_MS, more=False, held=PAUSED)
    assert queue.contents().ready_ids == before
    assert [delivery.id for delivery in queue.read("g")] == ["read later"]
    assert queue.ack(ready) == ["acked"]
    queue.advance(40_000)
    queue.reclaim("g")
    assert queue.contents().ready_ids == before

    wakes()
    queue.limit()
    assert wakes() == ["orders 0"]
    assert queue.promote().held == 0
    attempts = {d.id: d.attempt for d in queue.read("g")}
    assert attempts == {"immediate": 1, "later": 1, "nacked": 2, "released": 1, "rejected": 1}


def test_rate(queue: Queue) -> None:
    """Never more than n + burst in any window of the period, both ends included; and the rate is used up."""
    queue.limit(rate="20/s", burst=5)
    _send(queue, 1_000)
    queue.advance(5)
    passed: list[int] = []
    until = queue.now_ms + 10_000
    while queue.now_ms < until:
        promoted = queue.promote()
        passed += [promoted.now_ms] * promoted.count
        assert promoted.held > promoted.now_ms
        queue.now_ms = promoted.held
    for first in set(passed):
        assert sum(first <= moment <= first + 1_000 for moment in passed) <= 20 + 5
    assert len(passed) >= 0.99 * (20 * 10 + 5)


def test_rate_after_a_long_pause(queue: Queue) -> None:
    """A bucket holds burst + 1 tokens, however long nobody came. A clock that was set back does no harm."""
    queue.limit(rate="20/s", burst=5)
    _send(queue, 100)
    assert queue.promote().count == 6
    queue.advance(3_600_000)
    assert queue.promote().count == 6
    queue.advance(-3_600_000)
    assert queue.promote().held <= queue.now_ms + 6 * 51


def test_a_high_rate_comes_in_small_batches(queue: Queue) -> None:
    """A manager need not look for each token."""
    queue.limit(rate="1000/s")
    _send(queue, 300)
    assert queue.promote().count == 101
    held = queue.promote().held
    assert held - queue.now_ms in (10, 11)
    queue.now_ms = held
    assert 9 <= queue.promote().count <= 11


def test_messages_and_retries_pass_in_the_order_of_their_due_times(queue: Queue) -> None:
    """Neither starves the other."""
    queue.join("g")
    queue.send("retried")
    queue.nack(*queue.read("g"), delay_ms=2)
    queue.send_all([outgoing(id, due=due) for id, due in (("a", "+1"), ("b", "+3"), ("c", "+4"))])
    queue.limit(rate="1/s", burst=1)
    queue.advance(5)
    assert queue.promote().count == 2
    assert queue.contents().ready_ids == ["retried", "a", "retried"]
    queue.advance(2_002)
    assert queue.promote().count == 2
    assert queue.contents().ready_ids[3:] == ["b", "c"]


def test_max_in_flight(queue: Queue, wakes: Wakes) -> None:
    """As many as are missing; an ack that a promotion waits for wakes the managers, once."""
    queue.join("g")
    queue.limit(max_in_flight=3)
    _send(queue, 10)
    promoted = queue.promote()
    assert (promoted.count, promoted.held) == (3, TOO_MANY_IN_FLIGHT)
    first, *rest = queue.read("g")
    assert queue.promote().count == 0
    wakes()
    assert queue.ack(first) == ["acked"]
    assert wakes() == ["orders 0"]
    queue.ack(rest[0])
    assert wakes() == []
    assert queue.promote().count == 2
    queue.nack(rest[1], delay_ms=60_000)
    assert "orders 0" in wakes()
    assert queue.promote().count == 1


def test_max_in_flight_counts_the_group_that_has_most(queue: Queue) -> None:
    """A group that does not read holds up the others; entries for another group do not count."""
    queue.join("g", "h")
    queue.limit(max_in_flight=2)
    _send(queue, 6)
    assert queue.promote().count == 2
    queue.ack(*queue.read("g"))
    assert queue.promote().count == 0
    (first, _) = queue.read("h")
    queue.nack(first, delay_ms=0)
    assert queue.promote().count == 1
    # The retry is of h alone, and g has nothing in flight.
    assert [d.group for d in queue.read("h")] == ["h"]


def test_max_in_flight_of_groups_that_have_read_this_far_and_that(queue: Queue) -> None:
    """The group with most unread and unsettled copies decides how many places are free."""
    names = [f"g{n}" for n in range(6)]
    queue.join(*names)
    _send(queue, 30)
    for n, name in enumerate(names):
        queue.nack(*queue.read(name, limit=3 * n)[n:], delay_ms=0)
    while queue.promote().more:
        pass
    contents = queue.contents()
    unread = {
        name: len(state.pending)
        + sum(
            fields.get("g", name) == name
            for entry, fields in contents.stream.items()
            if [int(part) for part in entry.split("-")] > [int(part) for part in state.last.split("-")]
        )
        for name, state in contents.groups.items()
    }
    assert len(set(unread.values())) == 1
    queue.ack(*queue.read(names[0], limit=8))
    queue.ack(*queue.read(names[5], limit=2))
    queue.limit(max_in_flight=33)
    queue.send_all([outgoing(f"more{n}") for n in range(10)])
    assert queue.promote().count == 33 - 30


def test_a_group_far_behind_gets_no_more(queue: Queue, client: redis.Redis) -> None:
    """Even where hardly any entry is for it: to count what is would take too long."""
    queue.join("g", "h")
    entry = {"id": "a", "due": 1, "n": 2, "g": "h", "at": 1}
    with client.pipeline(transaction=False) as pipeline:
        for _ in range(5_000):
            pipeline.xadd(queue.keys.of("ready"), entry)  # type: ignore[arg-type]
        pipeline.execute()
    client.xgroup_setid(queue.keys.of("ready"), "h", "$")
    queue.limit(max_in_flight=10)
    _send(queue, 1)
    promoted = queue.promote()
    assert (promoted.count, promoted.held) == (0, TOO_MANY_IN_FLIGHT)
    queue.take("g", limit=1)
    assert queue.promote().count == 1


def test_max_in_flight_without_a_group(queue: Queue) -> None:
    """Entries that nobody can read yet count."""
    queue.limit(max_in_flight=2)
    _send(queue, 3)
    assert (queue.promote().count, queue.promote().count) == (2, 0)


def test_all_limits_together(queue: Queue) -> None:
    """The narrowest decides."""
    queue.join("g")
    queue.limit(max_in_flight=3, rate="2/s", burst=1)
    _send(queue, 10)
    assert queue.promote().count == 2
    queue.advance(2_000)
    promoted = queue.promote()
    assert (promoted.count, promoted.held) == (1, TOO_MANY_IN_FLIGHT)
    queue.ack(*queue.read("g"))
    promoted = queue.promote()
    assert (promoted.count, promoted.held > queue.now_ms) == (1, True)


def test_shut(queue: Queue, client: redis.Redis, wakes: Wakes) -> None:
    """A delivery that shuts the door is given back without an attempt, and comes first when it opens."""
    queue.join("g")
    queue.send_all([outgoing("a"), outgoing("b")])
    (a, b) = queue.read("g")
    wakes()
    assert queue.release(a, shut_ms=500) == 1
    assert wakes() == [f"orders {EPOCH_MS + 500}"]
    queue.shut(100)
    queue.send("c")
    queue.advance(499)
    assert queue.promote().held == EPOCH_MS + 500
    queue.advance(1)
    assert queue.promote().count == 2
    assert {d.id: d.attempt for d in queue.read("g")} == {"a": 1, "c": 1}
    assert not client.exists(queue.keys.of("door"))
    assert queue.ack(b) == ["acked"]


def test_a_shut_door_is_forgotten(queue: Queue, client: redis.Redis) -> None:
    """Even where nothing falls due after it."""
    queue.join("g")
    queue.shut(500)
    assert queue.sweep().next_in_ms == 500
    queue.advance(500)
    queue.sweep()
    assert not client.exists(queue.keys.of("door"))


@pytest.mark.parametrize("drained", ["dropped", "closed"])
def test_a_door_that_nobody_looks_after_is_not_shut(queue: Queue, client: redis.Redis, drained: str) -> None:
    """A handler may ask for a pause after the last message of a former shard is done, or its topic is dropped."""
    if drained == "closed":
        queue.join("g")
        queue.send("a")
        queue.connection.call(producing.close_shard(Layout("", "orders"), queue.keys))
        queue.shut(500)
        assert client.exists(queue.keys.of("door")), "it is shut while a message is left"
        queue.ack(*queue.read("g"))
        client.delete(queue.keys.of("door"))
    queue.shut(500)
    assert not client.exists(queue.keys.of("door"))


def test_a_closed_shard_is_shut_while_it_has_the_schedules(queue: Queue, client: redis.Redis) -> None:
    """Their ticks are sent there until they move."""
    queue.join("g")
    queue.connection.call(producing.close_shard(Layout("", "orders"), queue.keys))
    client.hset(queue.keys.of("ticks"), "", "left 1700000000000")
    queue.shut(500)
    assert not client.exists(queue.keys.of("door"))
    client.hset(queue.keys.of("ticks"), "", "1700000000000")
    queue.shut(500)
    assert client.exists(queue.keys.of("door"))


def test_max_messages(queue: Queue) -> None:
    """A send stores all of its messages or none; duplicates take no room, and acks make some."""
    queue.join("g")
    queue.limit(max_messages=3)
    _send(queue, 2)
    with pytest.raises(QueueFull, match=r"orders holds 2 messages of at most 3; 2 more were refused") as refusal:
        queue.send_all([outgoing("x"), outgoing("y", due="+5"), outgoing("m00000")])
    assert (refusal.value.limit, refusal.value.count) == (3, 2)
    assert sorted(queue.contents().records) == ["m00000", "m00001"]
    assert queue.send_all([outgoing("x"), outgoing("x"), outgoing("m00001")]) == [EPOCH_MS, 0, 0]
    assert queue.send("m00001") == 0
    queue.ack(*queue.read("g"))
    # Known ids take no room either.
    queue.send_all([outgoing(id) for id in ("x", "a", "b", "c")])
    with pytest.raises(QueueFull):
        queue.send("d")


def test_what_is_refused_leaves_nothing(queue: Queue) -> None:
    """Neither a message nor a known id: the same send is stored once there is room."""
    queue.limit(max_messages=1)
    queue.send("first")
    for _ in range(2):
        with pytest.raises(QueueFull, match="holds 1 messages of at most 1; 1 more were refused"):
            queue.send("second")
    contents = queue.contents()
    assert [*contents.records] == ["first"]
    assert not {"garbage", "failures", "finished"} & {*contents.left}
    queue.cancel("first")
    assert queue.send("second") == EPOCH_MS


@pytest.mark.parametrize(
    "door",
    [
        {"limits": "no JSON"},
        {"limits": "[1]"},
        {"limits": json.dumps({"paused": "x", "in_flight": -1, "interval_ms": "a", "burst": {}, "messages": None})},
        {"limits": json.dumps({"in_flight": 1e300, "interval_ms": 0})},
        {"shut": "nan", "spent": "inf"},
        {"shut": "-5", "limits": ""},
    ],
)
def test_foreign_values(queue: Queue, client: redis.Redis, door: dict[str, str]) -> None:
    """Limits that cannot be read are none."""
    queue.join("g")
    client.hset(queue.keys.of("door"), mapping=door)  # type: ignore[arg-type]
    queue.send("a")
    queue.send("b", due="+1")
    queue.advance(1)
    assert queue.promote().count == 1
    assert queue.contents().ready_ids == ["a", "b"]
