"""reclaim: abandoned deliveries go to retry, or to garbage."""

from collections.abc import Callable

import pytest

from lisa_common.call import command
from lisa_common.errors import NoGroup
from lisa_common.failure import Failure
from lisa_common.policy import Policy
from lisa_common.protocol.managing import Reclaimed
from support.queue import EPOCH_MS, STEADY, Queue, outgoing

LEASE_MS = STEADY.visibility_ms
NOTHING = Reclaimed("0-0", 0, 0, 0)


def test_only_after_the_visibility_timeout(queue: Queue) -> None:
    """A delivery is its consumer's for the visibility timeout, then it counts as failed."""
    queue.join("g")
    queue.send("a")
    (delivery,) = queue.read("g")
    queue.advance(LEASE_MS - 50)
    assert queue.reclaim("g") == NOTHING
    queue.advance(50)
    assert queue.reclaim("g") == Reclaimed("0-0", 1, 0, 0)
    contents = queue.contents()
    assert contents.retry == {"g/a": queue.now_ms + 1_000}
    assert contents.groups["g"].pending == {}
    entry = delivery.entry.entry
    text = "not acked within the visibility timeout of 30000 ms"
    assert contents.failures["g/a"] == Failure(1, entry, None, EPOCH_MS, queue.now_ms, "abandoned", text)


def test_no_attempts_left(queue: Queue) -> None:
    """A message that kills its consumers ends in garbage (promise 7)."""
    queue.join("g")
    queue.send("a", max_retries=0)
    queue.read("g")
    queue.advance(LEASE_MS)
    assert queue.reclaim("g") == Reclaimed("0-0", 0, 1, 0)
    assert queue.contents().garbage == {"g/a": queue.now_ms}


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
    assert queue.reclaim("g") == Reclaimed("0-0", *counts)
    assert queue.contents().retry == {}


def test_entries_deleted_from_the_stream(queue: Queue) -> None:
    """Pending entries that somebody deleted are let go of; a late ack of one still counts."""
    queue.join("g")
    queue.send_all([outgoing("a"), outgoing("b")])
    a, _ = queue.read("g")
    queue.connection.call(command("XDEL", queue.keys.of("ready"), a.entry.entry))
    queue.advance(LEASE_MS)
    assert queue.reclaim("g") == Reclaimed("0-0", 1, 0, 1)
    assert queue.contents().groups["g"].pending == {}
    assert queue.ack(a) == ["acked"]
    assert "a" not in queue.contents().records


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
