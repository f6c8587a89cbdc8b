"""extend: the lease of a delivery is renewed."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import redis

from lisa_common.errors import ServerError
from lisa_common.model.policy import Policy
from lisa_common.protocol.call import command
from lisa_common.protocol.managing import Reclaimed
from lisa_common.protocol.marking import StartMark
from support.queue import PAUSE_MS, STEADY, Queue, ends_in, outgoing

LEASE_MS = STEADY.visibility_ms
DAY_MS = 86_400_000


def test_renewed_from_now(queue: Queue) -> None:
    """A renewed delivery is its consumer's for another visibility timeout."""
    queue.join("g")
    queue.send("a")
    (delivery,) = queue.read("g")
    queue.advance(LEASE_MS - PAUSE_MS)
    assert queue.extend("c", delivery) == [True]
    queue.advance(LEASE_MS - PAUSE_MS)
    assert queue.reclaim("g").count == 0
    queue.advance(PAUSE_MS)
    assert queue.reclaim("g").retry == 1


def test_shorter_lease(queue: Queue) -> None:
    """A lease may be shorter than the visibility timeout."""
    queue.join("g")
    queue.send("a")
    (delivery,) = queue.read("g")
    assert queue.extend("c", delivery, lease_ms=2 * PAUSE_MS) == [True]
    queue.advance(PAUSE_MS)
    assert queue.reclaim("g").count == 0
    queue.advance(PAUSE_MS)
    assert queue.reclaim("g").retry == 1


def test_longer_lease(queue: Queue) -> None:
    """A lease may be longer than the visibility timeout; the error names its length."""
    queue.join("g")
    queue.send("a")
    (delivery,) = queue.read("g")
    assert queue.extend("c", delivery, lease_ms=3 * LEASE_MS) == [True]
    queue.advance(2 * LEASE_MS)
    reclaimed = queue.reclaim("g")
    assert replace(reclaimed, next_in_ms=None) == Reclaimed("0-0", 0, 0, 0)
    assert ends_in(reclaimed, LEASE_MS)
    queue.advance(LEASE_MS)
    assert queue.reclaim("g").retry == 1
    assert queue.failure("g/a").error == "not acked within its lease of 90000 ms"


def test_back_to_the_visibility_timeout(queue: Queue) -> None:
    """A renewal without a length ends the lease of another length."""
    queue.join("g")
    queue.send("a")
    (delivery,) = queue.read("g")
    queue.extend("c", delivery, lease_ms=3 * LEASE_MS)
    queue.extend("c", delivery)
    queue.advance(LEASE_MS)
    assert queue.reclaim("g").retry == 1
    assert queue.failure("g/a").error == "not acked within the visibility timeout of 30000 ms"


@pytest.mark.parametrize("lease_ms", [LEASE_MS // 2, LEASE_MS + 1, 1_000 * DAY_MS])
def test_a_lease_holds_though_the_visibility_timeout_is_changed(queue: Queue, lease_ms: int) -> None:
    """Its length is its own."""
    queue.join("g")
    queue.send("a")
    (delivery,) = queue.read("g")
    queue.extend("c", delivery, lease_ms=lease_ms)
    for visibility_ms in (100, DAY_MS):
        queue.policy = Policy.of({"visibility_ms": visibility_ms})
        assert ends_in(queue.reclaim("g"), lease_ms)
    queue.advance(lease_ms)
    assert queue.reclaim("g").retry == 1


def test_managers_hear_of_short_leases(queue: Queue, wakes: Callable[[], list[str]]) -> None:
    """Only of those that end before they would look."""
    queue.join("g")
    queue.send("a")
    (delivery,) = queue.read("g")
    wakes()
    for lease_ms in (None, LEASE_MS, LEASE_MS + 1, 300):
        queue.extend("c", delivery, lease_ms=lease_ms)
    assert wakes() == [f"orders {queue.now_ms + 300} lease"]


@pytest.mark.parametrize("begun", list(StartMark))
def test_keeps_the_mark(queue: Queue, begun: StartMark) -> None:
    """Whether a delivery has begun is not a matter of its lease."""
    queue.join("g")
    queue.send("a")
    (delivery,) = queue.read("g", "worker~")
    queue.mark(begun, delivery)
    for lease_ms in (None, 300, LEASE_MS + 1):
        queue.extend("worker~", delivery, lease_ms=lease_ms)
        rows: list[list[int]] = queue.connection.call(command("XPENDING", queue.keys.of("ready"), "g", "-", "+", 9))
        assert [row[3] for row in rows] == [1_000 * (lease_ms or 0) + begun]


def test_never_takes_a_delivery(queue: Queue) -> None:
    """Another consumer's delivery stays its own, with its lease; one that was settled is lost."""
    queue.join("g")
    queue.send_all([outgoing("mine"), outgoing("acked"), outgoing("other")])
    mine, acked = queue.read("g", "c1", limit=2)
    (other,) = queue.read("g", "c2")
    queue.ack(acked)
    queue.advance(LEASE_MS)
    assert queue.extend("c1", mine, acked, other) == [True, False, False]
    assert queue.contents().groups["g"].pending == {mine.entry.entry: "c1", other.entry.entry: "c2"}
    assert queue.reclaim("g").retry == 1
    assert queue.extend("c2", other) == [False]


@pytest.mark.parametrize("gone", ["group", "stream"])
def test_without_its_group_it_is_lost(queue: Queue, client: redis.Redis, gone: str) -> None:
    """An operator dropped the group, or the topic: the leases of other topics in the same request are renewed."""
    queue.join("g")
    queue.send("a")
    (delivery,) = queue.read("g")
    ready = queue.keys.of("ready")
    assert client.xgroup_destroy(ready, "g") if gone == "group" else client.delete(ready)
    assert queue.extend("c", delivery) == [False]


def test_of_something_else_raises(queue: Queue, client: redis.Redis) -> None:
    """Only a missing group means that a lease is lost."""
    queue.join("g")
    queue.send("a")
    (delivery,) = queue.read("g")
    client.delete(queue.keys.of("ready"))
    client.set(queue.keys.of("ready"), "no stream")
    with pytest.raises(ServerError, match="WRONGTYPE"):
        queue.extend("c", delivery)


def test_does_not_count_as_a_delivery(queue: Queue) -> None:
    """Redis' own counter of deliveries stays at one."""
    queue.join("g")
    queue.send("a")
    (delivery,) = queue.read("g")
    queue.extend("c", delivery)
    rows: list[list[object]] = queue.connection.call(command("XPENDING", queue.keys.of("ready"), "g", "-", "+", 9))
    assert [row[3] for row in rows] == [1]


def test_thousand_at_once(queue: Queue) -> None:
    """1,000 leases in one call."""
    queue.join("g")
    queue.send_all([outgoing(f"{n}") for n in range(1_000)])
    assert queue.extend("c", *queue.read("g")) == [True] * 1_000
