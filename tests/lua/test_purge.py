"""purge: dead letters are deleted for good."""

import pytest

from lisa_common.protocol import managing
from support.queue import EPOCH_MS, Queue, outgoing

DAY = 86_400_000


def test_nothing_is_left(queue: Queue) -> None:
    """Record, failure and place go, without a dedup window: the id may be sent again at once."""
    queue.join("g")
    queue.send("a", ttl_ms=9)
    queue.nack(*queue.read("g"), rejected=True)
    assert queue.purge("g/a") == 1
    assert queue.contents().left == []
    assert queue.send("a")


def test_what_no_group_had(queue: Queue) -> None:
    """So do those that died without a group."""
    queue.send("a", ttl_ms=1)
    queue.advance(5)
    queue.sweep()
    assert queue.purge("/a") == 1
    assert queue.contents().left == []


def test_only_what_is_dead(queue: Queue) -> None:
    """What waits, is ready, delivered or to be retried is not purged."""
    queue.join("g")
    queue.send_all([outgoing("held"), outgoing("retried"), outgoing("waits", due="+5")])
    held, retried = queue.read("g")
    queue.nack(retried)
    queue.send("ready")
    before = queue.contents()
    assert queue.purge("g/held", "g/retried", "g/waits", "/waits", "g/ready", "g/never") == 0
    assert queue.contents() == before
    assert queue.ack(held) == ["acked"]


def test_another_groups_copy_stays(queue: Queue) -> None:
    """The record lives while another group owes it."""
    queue.join("g", "h")
    queue.send("a")
    queue.nack(*queue.read("g"), rejected=True)
    assert queue.purge("g/a") == 1
    assert queue.contents().owed == {"a": "h"}
    assert [d.id for d in queue.read("h")] == ["a"]


@pytest.mark.parametrize("due", [0, 60_000], ids=["due at the same time", "due later"])
def test_of_a_group_that_is_gone(queue: Queue, due: int) -> None:
    """Its dead letter takes the message with it, but not a later one of the same id."""
    queue.join("g")
    for id in ("a", "b"):
        queue.send(id, due=str(EPOCH_MS), ttl_ms=DAY)
    queue.nack(*queue.read("g"), rejected=True)
    queue.destroy("g")
    assert queue.cancel("a") == ["cancelled"]
    queue.catch_up()
    queue.send("a", due=str(EPOCH_MS + due), body=b"new")
    assert queue.purge("g/a", "g/b") == 2
    assert queue.contents().left == ["records"]
    queue.join("h")
    assert [d.body for d in queue.read("h")] == [b"new"]


def test_thousand_at_once(queue: Queue) -> None:
    """1,000 dead letters in one call."""
    queue.join("g")
    queue.send_all([outgoing(f"{n}") for n in range(1_000)])
    queue.nack(*queue.read("g"), rejected=True)
    assert queue.purge(*(f"g/{n}" for n in range(1_000))) == 1_000
    assert queue.contents().left == []


def _purge_moved(queue: Queue, copy: str, died_ms: int, window_ms: int = 1_000) -> int:
    call = managing.purge(queue.keys, [copy], [died_ms], window_ms=window_ms, now_ms=queue.now_ms)
    purged: int = queue.connection.call(call)
    return purged


@pytest.mark.parametrize("id", ["a", "made~"])
def test_a_moved_letter_stays_known_for_a_window(queue: Queue, id: str) -> None:
    """As after an ack; an id that Lisa made needs none."""
    queue.join("g")
    queue.send(id)
    queue.nack(*queue.read("g"), rejected=True)
    assert _purge_moved(queue, f"g/{id}", queue.now_ms) == 1
    assert queue.contents().finished == ({} if id.endswith("~") else {id: queue.now_ms + 1_000})
    assert bool(queue.send(id)) is id.endswith("~")


def test_one_that_died_again_is_left(queue: Queue) -> None:
    """Only the death that the caller knows is purged."""
    queue.join("g")
    queue.send("a")
    queue.nack(*queue.read("g"), rejected=True)
    queue.advance(1)
    queue.replay("g/a")
    queue.nack(*queue.read("g"), rejected=True)
    before = queue.contents()
    assert _purge_moved(queue, "g/a", queue.now_ms - 1) == 0
    assert queue.contents() == before
    assert _purge_moved(queue, "g/a", queue.now_ms) == 1
