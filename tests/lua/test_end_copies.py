"""end_copies: a dropped group's copies end."""

import pytest

from support.queue import Queue, outgoing


def test_what_it_had_alone_is_forgotten(queue: Queue) -> None:
    """Retries and dead letters end, with their failures, records and expiry."""
    queue.join("g")
    queue.send_all([outgoing(id, ttl_ms=9) for id in ("retried", "dead")])
    retried, dead = queue.read("g")
    queue.nack(retried)
    queue.nack(dead, rejected=True)
    queue.destroy("g")
    assert queue.end_copies("g", "retried", "dead") == 2
    assert queue.contents().left == []


def test_what_no_key_names_with_it_is_left(queue: Queue) -> None:
    """Of what was delivered or ready it cannot be told whose it is, nor of what waits."""
    queue.join("g")
    queue.send_all([outgoing("held"), outgoing("ready"), outgoing("waits", due="+5")])
    queue.read("g", limit=1)
    queue.destroy("g")
    before = queue.contents()
    assert queue.end_copies("g", "held", "ready", "waits") == 0
    assert queue.contents() == before


@pytest.mark.parametrize("rejected", [True, False])
def test_a_later_message_of_the_same_id_is_kept(queue: Queue, *, rejected: bool) -> None:
    """What the group had failed was cancelled, and the id sent again; only the earlier copy goes."""
    queue.join("g")
    queue.send("a")
    queue.nack(*queue.read("g"), rejected=rejected)
    queue.destroy("g")
    queue.cancel("a")
    queue.send("a", due="+5")
    assert queue.end_copies("g", "a") == 0
    assert queue.contents().left == ["waiting", "records"]


def test_what_was_sent_again_since_it_was_looked_up_is_kept(queue: Queue) -> None:
    """By the time that its turn comes, the id may be that of a message which was never the group's."""
    queue.join("g", "h")
    queue.send("a")
    queue.destroy("g")
    queue.cancel("a")
    queue.send("a")
    before = queue.contents()
    assert queue.end_copies("g", "a") == 0
    assert queue.contents() == before


def test_other_groups_keep_theirs(queue: Queue) -> None:
    """A message that another group owes lives on, for that group."""
    queue.join("g", "h")
    queue.send("a")
    queue.nack(*queue.read("g"))
    queue.destroy("g")
    assert queue.end_copies("g", "a") == 1
    contents = queue.contents()
    assert contents.left == ["records", "owed"]
    assert contents.owed == {"a": "h"}
    assert queue.ack(*queue.read("h")) == ["acked"]


def test_thousand_at_once(queue: Queue) -> None:
    """1,000 messages in one call."""
    queue.join("g", "h")
    queue.send_all([outgoing(f"{n}") for n in range(1_000)])
    queue.destroy("g")
    assert queue.end_copies("g", *(f"{n}" for n in range(1_000))) == 1_000
    assert set(queue.contents().owed.values()) == {"h"}
