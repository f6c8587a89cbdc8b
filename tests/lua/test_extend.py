"""extend: the lease of a delivery is renewed."""

import pytest

from lisa_common.call import command
from lisa_common.errors import InvalidInput
from support.queue import STEADY, Queue, outgoing

LEASE_MS = STEADY.visibility_ms


def test_renewed_from_now(queue: Queue) -> None:
    """A renewed delivery is its consumer's for another visibility timeout."""
    queue.join("g")
    queue.send("a")
    (delivery,) = queue.read("g")
    queue.advance(LEASE_MS - 100)
    assert queue.extend("c", delivery) == [True]
    queue.advance(LEASE_MS - 100)
    assert queue.reclaim("g").count == 0
    queue.advance(100)
    assert queue.reclaim("g").retry == 1


def test_shorter_lease(queue: Queue) -> None:
    """A lease may be shorter than the visibility timeout."""
    queue.join("g")
    queue.send("a")
    (delivery,) = queue.read("g")
    assert queue.extend("c", delivery, lease_ms=1_000) == [True]
    queue.advance(900)
    assert queue.reclaim("g").count == 0
    queue.advance(100)
    assert queue.reclaim("g").retry == 1


@pytest.mark.parametrize("lease_ms", [0, LEASE_MS + 1])
def test_no_longer_than_the_visibility_timeout(queue: Queue, lease_ms: int) -> None:
    """A lease beyond what reclaim looks at is refused, naming the limit (promise 13)."""
    queue.join("g")
    queue.send("a")
    (delivery,) = queue.read("g")
    with pytest.raises(InvalidInput, match=r"lease .* up to the topic's visibility timeout, 30 s"):
        queue.extend("c", delivery, lease_ms=lease_ms)


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
