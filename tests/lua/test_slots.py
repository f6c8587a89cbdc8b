"""Slots of keys: at most so many messages of a key are in flight, in the order of their due times."""

from collections.abc import Callable
from typing import Any

import pytest
import redis

from lisa_common.client.connection import Connection
from lisa_common.model.delivery import Entry, entry_of
from lisa_common.model.keys import ShardKeys
from lisa_common.model.policy import Policy
from lisa_common.protocol import managing, producing
from lisa_common.protocol.producing import State
from support import Server
from support.queue import EPOCH_MS, Queue, outgoing

Wakes = Callable[[], list[str]]
PARKED = 2**44


_GROUPS = [f"g{n:02}" for n in range(100)]


def _retried_by_many(queue: Queue, client: redis.Redis, count: int) -> list[str]:
    """Makes messages of one key that a hundred groups have to retry now."""
    ids = [f"m{n:02}" for n in range(count)]
    queue.join(*_GROUPS)
    queue.send_all([outgoing(id, key="k") for id in ids])
    for group in _GROUPS:
        client.xgroup_setid(queue.keys.of("ready"), group, "$")
    copies = [f"{group}/{id}" for group in _GROUPS for id in ids]
    client.zadd(queue.keys.of("retry"), dict.fromkeys(copies, queue.now_ms))
    return ids


@pytest.fixture
def one(queue: Queue) -> Queue:
    """A topic in which one message of each key may be in flight."""
    queue.limit(max_in_flight_per_key=1)
    queue.join("g")
    return queue


def _send(queue: Queue, *ids: str, key: str = "k", **options: Any) -> None:
    for id in ids:
        queue.send(id, key=key, **options)


def _ready(queue: Queue) -> list[str]:
    """Promotes all, and reads."""
    while queue.promote().more:
        pass
    return [delivery.id for delivery in queue.read("g")]


def test_one_at_a_time(one: Queue, wakes: Wakes) -> None:
    """A key's messages come one after another, those of other keys and without a key at once."""
    _send(one, "a1", "a2", "a3", key="a")
    _send(one, "b1", "b2", key="b")
    one.send("free 1")
    one.send("free 2")
    promoted = one.promote()
    assert promoted.count == 4
    assert promoted.more
    assert one.promote().count == 0
    assert one.promote().next_due_ms is None
    first = {delivery.id: delivery for delivery in one.read("g")}
    assert list(first) == ["a1", "b1", "free 1", "free 2"]
    assert one.contents().busy == {"a1": "a", "b1": "b"}
    assert one.contents().waiting == dict.fromkeys(("a2", "a3", "b2"), EPOCH_MS + PARKED)

    wakes()
    assert one.ack(first["a1"]) == ["acked"]
    assert wakes() == ["orders 0"]
    assert one.contents().waiting == {"a2": EPOCH_MS, "a3": EPOCH_MS + PARKED, "b2": EPOCH_MS + PARKED}
    assert _ready(one) == ["a2"]
    assert one.ack(first["free 1"]) == ["acked"]
    assert wakes() == []
    one.ack(first["b1"])
    assert _ready(one) == ["b2"]


def test_nothing_is_left(one: Queue) -> None:
    """Once all is done, the keys are empty."""
    _send(one, *"abcdef")
    order = []
    for _ in range(6):
        assert one.promote().count == 1
        (delivery,) = one.read("g")
        order.append(delivery.id)
        one.ack(delivery)
    assert order == list("abcdef")
    one.advance(one.policy.dedup_window_ms)
    one.sweep()
    assert one.contents().left == []


def test_due_order(one: Queue) -> None:
    """Parked messages come by due time, then by priority, then by id."""
    _send(one, "holder", due="+1")
    _send(one, "third", "fourth", due="+20")
    _send(one, "second", due="+20", priority=9)
    _send(one, "first", due="+10")
    one.advance(30)
    order = []
    while ids := _ready(one):
        order += ids
        one.ack(*[_held(one, id) for id in ids])
    assert order == ["holder", "first", "second", "fourth", "third"]


def _held(queue: Queue, id: str) -> Any:
    (entry,) = (entry for entry, fields in queue.contents().stream.items() if fields["id"] == id)
    return next(d for d in queue.judge("g", [_entry(queue, entry)]) if d.id == id)


def _entry(queue: Queue, name: str) -> Entry:
    fields = queue.contents().stream[name]
    return entry_of(name.encode(), [text.encode() for pair in fields.items() for text in pair])


def test_two_at_a_time(queue: Queue) -> None:
    """A limit of 2."""
    queue.limit(max_in_flight_per_key=2)
    queue.join("g")
    _send(queue, *"abcd")
    queue.promote()
    a, b = queue.read("g")
    queue.ack(b)
    assert _ready(queue) == ["c"]
    queue.ack(a)
    assert _ready(queue) == ["d"]


def test_retries_keep_the_slot(one: Queue) -> None:
    """A message that is nacked, snoozed, released or reclaimed holds up its key; as garbage it does not."""
    _send(one, "a", "b")
    one.promote()
    (a,) = one.read("g")
    one.nack(a, delay_ms=50)
    assert _ready(one) == []
    one.advance(50)
    one.promote()
    (a,) = one.read("g")
    assert (a.id, a.attempt) == ("a", 2)
    one.nack(a, snoozed=True, delay_ms=10)
    one.advance(10)
    one.promote()
    (a,) = one.read("g")
    one.release(a)
    one.promote()
    (a,) = one.read("g")
    one.advance(60_000)
    assert one.reclaim("g").retry == 1
    assert _ready(one) == []
    one.advance(60_000)
    one.promote()
    (a,) = one.read("g")
    assert a.id == "a"
    one.nack(a, rejected=True)
    assert _ready(one) == ["b"]


def test_replay(one: Queue) -> None:
    """A replayed message waits for the slot of its key, in retry, and gets it by its due time."""
    _send(one, "a", "b", "c")
    one.promote()
    (a,) = one.read("g")
    one.nack(a, rejected=True)
    assert _ready(one) == ["b"]
    assert one.replay("g/a") == ["replayed"]
    one.promote()
    assert one.contents().retry == {"g/a": one.now_ms + PARKED}
    found = one.find("a")
    assert found is not None
    assert (found.state, found.due_ms) == (State.RETRY, one.now_ms)
    one.ack(_held(one, "b"))
    assert one.contents().retry or one.contents().waiting["c"] < PARKED


@pytest.mark.parametrize("id", ["a", "b"])
def test_cancel(one: Queue, id: str, wakes: Wakes) -> None:
    """A cancelled holder makes room at once; a cancelled parked message is passed over."""
    _send(one, "a", "b", "c")
    one.promote()
    wakes()
    assert one.cancel(id) == ["cancelled"]
    assert bool(wakes()) == (id == "a")
    order = []
    while ids := _ready(one):
        order += ids
        one.ack(_held(one, ids[0]))
    assert order == [name for name in "abc" if name != id]
    assert (one.contents().busy, one.contents().slots, one.contents().parked) == ({}, [], [])


def test_cancel_of_what_got_a_slot(one: Queue) -> None:
    """A message that got its slot, and was cancelled before its promotion, passes the slot on."""
    _send(one, "a", "b", "c")
    one.promote()
    one.ack(*one.read("g"))
    assert one.contents().busy == {"b": "k"}
    assert one.cancel("b") == ["cancelled"]
    assert one.contents().busy == {"c": "k"}
    assert _ready(one) == ["c"]


def test_cancel_of_a_delivery(one: Queue) -> None:
    """A delivery that is cancelled keeps the slot until it ends."""
    _send(one, "a", "b")
    one.promote()
    (a,) = one.read("g")
    assert one.cancel("a") == ["delivered"]
    assert _ready(one) == []
    assert one.ack(a) == ["acked"]
    assert _ready(one) == ["b"]


def test_expiry(one: Queue) -> None:
    """Parked messages expire; one that expires while it holds the slot passes it on."""
    _send(one, "a", "b", ttl_ms=100)
    _send(one, "c")
    one.promote()
    one.advance(100)
    assert one.sweep().expired == 2
    assert _ready(one) == ["c"]


def test_expiry_of_a_delivery(one: Queue) -> None:
    """An expired message that a consumer meets passes its slot on."""
    _send(one, "a", ttl_ms=100)
    _send(one, "b")
    one.promote()
    entries = one.take("g")
    one.advance(100)
    assert one.judge("g", entries) == []
    assert _ready(one) == ["b"]


def test_reschedule(one: Queue) -> None:
    """A parked message that is rescheduled comes at its new time; one that has the slot gives it up."""
    _send(one, "a", "b", "c")
    one.promote()
    one.reschedule(("b", "+1000"))
    one.ack(*one.read("g"))
    assert one.contents().busy == {"c": "k"}
    one.reschedule(("c", "+2000"))
    assert one.contents().busy == {}
    assert _ready(one) == []
    one.advance(3000)
    assert _ready(one) == ["b"]


def test_groups(queue: Queue) -> None:
    """A message holds its slot until the last group is done with it."""
    queue.limit(max_in_flight_per_key=1)
    queue.join("g", "h")
    _send(queue, "a", "b", "c")
    queue.promote()
    (of_g,), (of_h,) = queue.read("g"), queue.read("h")
    queue.ack(of_g)
    assert _ready(queue) == []
    queue.nack(of_h, rejected=True)
    assert _ready(queue) == ["b"]
    (of_g,), (of_h,) = [_held(queue, "b")], queue.read("h")
    queue.nack(of_h, rejected=True)
    assert _ready(queue) == []
    queue.ack(of_g)
    assert _ready(queue) == ["c"]


def test_replays_of_several_groups(queue: Queue) -> None:
    """Two copies of a message need one slot; neither waits for the other."""
    queue.limit(max_in_flight_per_key=1)
    queue.join("g", "h")
    _send(queue, "a", "b")
    queue.promote()
    queue.nack(*queue.read("g"), rejected=True)
    queue.nack(*queue.read("h"), rejected=True)
    assert _ready(queue) == ["b"]
    queue.replay("g/a", "h/a")
    queue.promote()
    assert set(queue.contents().retry.values()) == {queue.now_ms + PARKED}
    queue.ack(_held(queue, "b"))
    queue.ack(*queue.read("h"))
    queue.promote()
    assert [d.id for group in "gh" for d in queue.read(group)] == ["a", "a"]


def test_a_busy_key_beside_a_limit(queue: Queue) -> None:
    """Where few may pass, busy keys do not hold up the others."""
    queue.limit(max_in_flight_per_key=1, max_in_flight=2)
    queue.join("g")
    _send(queue, *(f"a{n:03}" for n in range(300)), key="a")
    _send(queue, "b", key="b", due="+1")
    queue.advance(1)
    assert _ready(queue) == ["a000", "b"]
    assert queue.promote().count == 0


def test_a_rate_is_spent_by_what_passes(queue: Queue) -> None:
    """What is parked spends no token."""
    queue.limit(max_in_flight_per_key=1, rate="1/s", burst=1)
    queue.join("g")
    _send(queue, "a1", "a2", "a3", key="a")
    _send(queue, "b", key="b", due="+1")
    queue.advance(1)
    assert _ready(queue) == ["a1", "b"]
    assert queue.promote().count == 0


def test_large_messages(one: Queue) -> None:
    """A promotion reads a bounded part of the records; the rest comes with the next one."""
    for n in range(8):
        one.send(f"m{n}", key=f"k{n}", body=bytes(1024 * 1024))
    promoted = one.promote()
    assert promoted.more
    assert 1 <= promoted.count < 8
    assert len(_ready(one)) == 8


def test_strange_keys(one: Queue) -> None:
    """Keys with quotes, other scripts of the world and none."""
    for key in ('say "hello"', "Müller\\s", "キー", "x" * 200):
        _send(one, f"{key} 1"[-150:], f"{key} 2"[-150:], key=key)
    one.send("not a key", headers={"other": '"lisa-key":"x"'})
    one.send("empty", headers={"lisa-key": ""})
    one.promote()
    assert len(one.read("g")) == 6
    assert len(one.contents().parked) == 4


def test_keys_of_another_type(one: Queue, client: redis.Redis) -> None:
    """A promotion that cannot read what it needs changes nothing."""
    _send(one, "a", "b")
    client.set(one.keys.of("busy"), "text")
    before = client.zrange(one.keys.of("waiting"), 0, -1, withscores=True)
    with pytest.raises(Exception, match="WRONGTYPE"):
        one.promote()
    assert client.zrange(one.keys.of("waiting"), 0, -1, withscores=True) == before


def test_another_limit(one: Queue) -> None:
    """Managers unpark what a higher limit lets pass, or none."""
    _send(one, *"abcd")
    one.promote()
    assert one.tidy() == 0
    one.limit(max_in_flight_per_key=2)
    assert (one.tidy(mend=False), one.tidy(), one.tidy()) == (1, 1, 0)
    assert _ready(one) == ["a", "b"]
    one.limit()
    assert one.tidy() == 1
    assert _ready(one) == ["c", "d"]
    for id in "abcd":
        one.ack(_held(one, id))
    assert (one.contents().busy, one.contents().slots, one.contents().parked) == ({}, [], [])


def test_an_ack_after_the_limit_is_gone(one: Queue) -> None:
    """It unparks what waits, without managers."""
    _send(one, *"abc")
    one.promote()
    (a,) = one.read("g")
    one.limit()
    one.ack(a)
    assert _ready(one) == ["b", "c"]


def test_what_ends_or_moves_leaves_the_index(one: Queue) -> None:
    """Cancelled, expired, rescheduled and updated messages, so that the index never grows beyond what is parked."""
    _send(one, "holder")
    one.promote()
    _send(one, "cancelled", "moved", "updated", "next")
    _send(one, "expired", ttl_ms=10)
    _send(one, "moved again", priority=9)
    one.promote()
    assert len(one.contents().parked) == 6
    one.cancel("cancelled")
    one.reschedule(("moved", "+1000"), ("moved again", "+1000"))
    one.connection.call(producing.update(one.keys, [outgoing("updated", key="other", due="+1000")], now_ms=one.now_ms))
    one.advance(10)
    one.sweep()
    assert one.contents().parked == ["k\0" + f"{EPOCH_MS:015}255mnext"]
    assert one.tidy(mend=False) == 0
    (holder,) = one.read("g")
    one.ack(holder)
    assert one.contents().parked == []
    assert _ready(one) == ["next"]


@pytest.mark.parametrize("end", ["cancel", "reschedule"])
def test_a_copy_that_ends_leaves_the_index(queue: Queue, end: str) -> None:
    """A retry that waits for its key, when its message is cancelled, or rescheduled in all groups."""
    queue.limit(max_in_flight_per_key=1)
    queue.join("g", "h")
    queue.send("dead", key="k")
    queue.promote()
    for group in ("g", "h"):
        queue.nack(*queue.read(group), rejected=True)
    _send(queue, "holder")
    queue.promote()
    queue.replay("g/dead", "h/dead")
    queue.promote()
    assert len(queue.contents().parked) == 2
    if end == "cancel":
        queue.cancel("dead")
    else:
        queue.reschedule(("dead", "+1000"))
    assert queue.contents().parked == []
    assert queue.tidy(mend=False) == 0


def test_a_younger_message_never_overtakes(one: Queue, client: redis.Redis) -> None:
    """Even where there is more in the index, left by other programs, than the call may look at that frees the slot."""
    _send(one, "holder")
    one.promote()
    (holder,) = one.read("g")
    one.advance(1)
    _send(one, "old")
    one.promote()
    client.zadd(one.keys.of("parked"), {f"k\0{EPOCH_MS:015}255mgone{n}": 0 for n in range(1_200)})
    one.ack(holder)
    one.advance(1)
    _send(one, "young")
    assert _ready(one) == []
    assert one.tidy() > 0
    assert _ready(one) == ["old"]
    one.ack(_held(one, "old"))
    assert _ready(one) == ["young"]


def test_a_call_unparks_only_so_many(one: Queue) -> None:
    """Of all keys together, when the limit is gone. Managers unpark the rest."""
    for n in range(6):
        one.send_all([outgoing(f"{n}-{i:03}", key=f"k{n}") for i in range(200)])
    held = []
    while len(held) < 6:
        one.promote()
        held += one.read("g")
    while one.promote().more:
        pass
    one.limit()
    one.ack(*held)
    assert len(one.contents().parked) == 6 * 199 - 500
    assert one.tidy() > 0
    assert one.contents().parked == []
    assert len(_ready(one)) == 6 * 199


def test_a_call_unparks_only_so_many_copies(queue: Queue, client: redis.Redis) -> None:
    """A message that gets a slot takes the copies of all groups with it."""
    ids = _retried_by_many(queue, client, 12)
    queue.limit(max_in_flight_per_key=1)
    while queue.promote().more:
        pass
    assert len(queue.contents().parked) == 1_100
    queue.limit(max_in_flight_per_key=100)
    queue.cancel(*queue.contents().busy)
    assert len(queue.contents().busy) == 5
    queue.tidy()
    assert (len(queue.contents().busy), queue.contents().parked) == (len(ids) - 1, [])


def test_a_promotion_gives_only_so_many_slots(queue: Queue, client: redis.Redis) -> None:
    """Each looks at the copies of all groups."""
    _retried_by_many(queue, client, 50)
    queue.limit(max_in_flight_per_key=100)
    assert queue.promote().more
    assert 1 <= len(queue.contents().busy) <= 40
    while queue.promote().more:
        pass
    assert (len(queue.contents().busy), queue.contents().retry) == (50, {})


def test_dead_letters_of_many_groups_free_slots_in_parts(queue: Queue, client: redis.Redis) -> None:
    """A call looks at some copies; managers look at the rest."""
    ids = [f"m{n:02}" for n in range(60)]
    queue.join(*_GROUPS)
    queue.limit(max_in_flight_per_key=1)
    queue.send_all([outgoing(id, key=id) for id in ids])
    queue.promote()
    dead = [f"{group}/{id}" for group in _GROUPS[1:] for id in ids]
    client.zadd(queue.keys.of("garbage"), dict.fromkeys(dead, queue.now_ms))
    queue.nack(*queue.read(_GROUPS[0]), rejected=True)
    assert len(queue.contents().busy) == 50
    queue.connection.call(managing.tidy_slots(queue.keys, b"", mend=True))
    assert 1 <= len(queue.contents().busy) < 50
    queue.tidy()
    assert queue.contents().busy == {}


def test_the_record_of_parked_copies_is_read_once(own_server: Callable[..., Server]) -> None:
    """It may be large, and a hundred groups have a copy each."""
    server = own_server()
    with server.client() as client, Connection(server.url) as connection:
        queue = Queue(connection, ShardKeys("lisa", "orders"))
        _retried_by_many(queue, client, 2)
        queue.limit(max_in_flight_per_key=1)
        while queue.promote().more:
            pass
        client.config_resetstat()
        assert queue.reschedule(("m01", "+5")) == [("rescheduled", queue.now_ms + 5)]
        assert queue.contents().parked == []
        stats: dict[str, Any] = client.info("commandstats")  # type: ignore[assignment]
        # One for each failure, and a few.
        assert stats["cmdstat_hget"]["calls"] < 110


@pytest.mark.parametrize("index", ["slots", "parked"])
def test_an_ack_beside_an_index_of_another_type(one: Queue, client: redis.Redis, index: str) -> None:
    """It is done as a whole; the slot is freed once the key is gone."""
    _send(one, "a", "b")
    one.promote()
    (a,) = one.read("g")
    client.delete(one.keys.of(index))
    client.set(one.keys.of(index), "text")
    one.policy = Policy.of({"dedup_window_ms": 60_000, "max_in_flight_per_key": 1})
    assert one.ack(a) == ["acked"]
    client.delete(one.keys.of(index))
    assert one.contents().finished.keys() == {"a"}
    assert one.contents().records.keys() == {"b"}
    one.tidy()
    assert _ready(one) == ["b"]


def _lose_record(queue: Queue, client: redis.Redis) -> None:
    client.hdel(queue.keys.of("messages"), "a")


def _lose_holder(queue: Queue, client: redis.Redis) -> None:
    client.delete(queue.keys.of("busy"))


def _lose_slots(queue: Queue, client: redis.Redis) -> None:
    client.delete(queue.keys.of("slots"))


def _lose_parked(queue: Queue, client: redis.Redis) -> None:
    client.delete(queue.keys.of("parked"))


def _lose_place(queue: Queue, client: redis.Redis) -> None:
    client.zremrangebyrank(queue.keys.of("parked"), 0, 0)


def _add_foreign_place(queue: Queue, client: redis.Redis) -> None:
    client.zadd(queue.keys.of("parked"), {"!": 1, "nothing": 0, "x\0y": -1})


def _move_place(queue: Queue, client: redis.Redis) -> None:
    [first, *_] = client.zrange(queue.keys.of("parked"), 0, 0)
    client.zadd(queue.keys.of("parked"), {first: 7})


def _add_foreign_slot(queue: Queue, client: redis.Redis) -> None:
    client.zadd(queue.keys.of("slots"), {"!": 1, "k\0a": float("inf")})


def _lose_group(queue: Queue, client: redis.Redis) -> None:
    client.hset(queue.keys.of("owed"), "a", "gone")


@pytest.mark.parametrize(
    "lose",
    [
        *(_lose_record, _lose_holder, _lose_slots, _lose_parked, _lose_group, _lose_place),
        *(_add_foreign_place, _move_place, _add_foreign_slot),
    ],
)
def test_damage(one: Queue, client: redis.Redis, lose: Callable[[Queue, redis.Redis], None]) -> None:
    """Whatever is lost, managers find it, and the key does not stay blocked."""
    _send(one, *"abc")
    one.promote()
    (a,) = one.read("g")
    lose(one, client)
    assert one.tidy(mend=False) > 0
    assert one.tidy() > 0
    one.promote()
    assert one.tidy() == 0
    one.ack(a)
    order: list[str] = []
    while ids := _ready(one):
        order += ids
        one.ack(*[_held(one, id) for id in ids])
    assert order == ["b", "c"]
