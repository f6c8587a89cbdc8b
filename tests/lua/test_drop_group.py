"""drop_group: a group is dropped step by step; what it owes ends with the step that moves it on."""

import pytest

from lisa_common.protocol import managing
from lisa_common.protocol.call import command
from support.queue import EPOCH_MS, Queue, outgoing

ALL = 1_000


def go(queue: Queue, *, limit: int = 0, group: str = "g", destroy: bool = True) -> tuple[str, int]:
    """Takes one step."""
    call = managing.drop_group(queue.keys, group, limit=limit, destroy=destroy)
    told: tuple[str, int] = queue.connection.call(call)
    return told


def go_on(queue: Queue, *, limit: int = ALL, group: str = "g") -> int:
    """Takes steps until the group is gone. Returns how many copies were ended."""
    ended, outcome = 0, "more"
    while outcome == "more":
        outcome, count = go(queue, limit=limit, group=group)
        ended += count
    assert outcome == "done"
    return ended


@pytest.mark.parametrize("read", [True, False])
def test_a_group_that_owes_stays(queue: Queue, *, read: bool) -> None:
    """What is pending counts, and what was not delivered."""
    queue.join("g")
    queue.send("a")
    if read:
        queue.read("g")
    before = queue.contents()
    assert go(queue) == ("owes", 0)
    assert queue.contents() == before
    assert go(queue, limit=1) == ("more", 1)
    assert queue.contents().groups.keys() == {"g"}
    assert go(queue, limit=1) == ("done", 0)
    contents = queue.contents()
    assert (contents.groups, contents.stream, contents.left) == ({}, {}, [])


def test_a_group_stays_until_it_is_to_be_destroyed(queue: Queue) -> None:
    """It owes nothing then; what comes meanwhile ends with the step that destroys it."""
    queue.join("g")
    queue.send("a")
    assert go(queue, limit=ALL, destroy=False) == ("settled", 1)
    assert go(queue, destroy=False) == ("settled", 0)
    queue.send("b")
    assert go(queue, destroy=False) == ("owes", 0)
    assert queue.contents().groups.keys() == {"g"}
    assert go(queue, limit=ALL) == ("done", 1)
    contents = queue.contents()
    assert (contents.groups, contents.stream, contents.left) == ({}, {}, [])


def test_what_is_pending_and_what_is_undelivered_end_in_one_step(queue: Queue) -> None:
    """As far as the limit goes: beside consumers that read, something is always pending."""
    queue.join("g")
    queue.send_all([outgoing(id) for id in "abcde"])
    queue.read("g", limit=2)
    assert go(queue, limit=4, destroy=False) == ("more", 4)
    queue.send("f")
    queue.read("g", limit=1)
    assert go(queue, limit=4) == ("done", 2)
    contents = queue.contents()
    assert (contents.groups, contents.stream, contents.left) == ({}, {}, [])


def test_another_groups_retry_is_no_debt(queue: Queue) -> None:
    """It is before this group in the stream, and not for it."""
    queue.join("g", "h")
    queue.send("a")
    queue.ack(*queue.read("g"))
    queue.nack(*queue.read("h"), delay_ms=0)
    queue.promote()
    assert go(queue) == ("done", 0)
    assert queue.contents().groups.keys() == {"h"}


def test_a_group_that_is_not_there(queue: Queue) -> None:
    """Nor is its stream."""
    assert go(queue) == go(queue, limit=1) == ("gone", 0)


def test_a_stream_without_entries(queue: Queue) -> None:
    """Has nothing to end."""
    queue.join("g")
    assert go(queue, limit=1) == ("done", 0)


@pytest.mark.parametrize("limit", [1, 2, 3, ALL])
def test_trim_between_the_steps_takes_nothing_that_is_owed(queue: Queue, limit: int) -> None:
    """After every step each record has its place, for the group that is dropped and for the other one (promise 9)."""
    queue.join("g")
    queue.send_all([outgoing(f"alone-{n}", ttl_ms=9_000) for n in range(4)])
    held = queue.read("g", limit=3)
    queue.nack(held[0], delay_ms=0)
    queue.join("h")
    queue.send_all([outgoing(f"both-{n}") for n in range(4)])
    queue.read("h", limit=2)
    queue.promote()
    outcome = "more"
    while outcome == "more":
        outcome, _ = go(queue, limit=limit)
        queue.trim()
        left = queue.contents()
        # What was ended was nobody's but the group's; what is left of it is still in its stream, or pending.
        alone = [id for id in left.records if id.startswith("alone")]
        assert len(alone) <= len({f["id"] for f in left.stream.values() if f["id"].startswith("alone")})
        assert {id for id in left.records if id.startswith("both")} == {f"both-{n}" for n in range(4)}
    contents = queue.contents()
    assert contents.records.keys() == {f"both-{n}" for n in range(4)}
    assert contents.owed == {f"both-{n}": "h" for n in range(4)}
    assert (contents.failures, contents.expiring) == ({}, {})


def test_few_large_records_are_read_at_once(queue: Queue) -> None:
    """However many entries a step may take."""
    queue.join("g")
    for n in range(6):
        queue.send(f"{n}", body=b"x" * 1_000_000)
    queue.read("g", limit=3)
    queue.send("6", body=b"x" * 1_000_000)
    assert go(queue, limit=ALL) == ("more", 3)
    assert go(queue, limit=ALL) == ("more", 3)
    assert go(queue, limit=ALL) == ("done", 1)


def test_what_another_group_owes_is_kept(queue: Queue) -> None:
    """Whether it is named in `owed`, or is the only group that the message was sent to."""
    queue.join("h")
    queue.send("only h's")
    queue.join("g")
    queue.send("of both")
    queue.ack(*queue.read("g"))
    assert go_on(queue) == 0
    assert {delivery.id for delivery in queue.read("h")} == {"only h's", "of both"}


def test_what_another_group_has_without_being_named_is_kept(queue: Queue) -> None:
    """Where `owed` was deleted by hand."""
    queue.join("g", "h")
    queue.send_all([outgoing("a"), outgoing("b")])
    queue.read("h", limit=1)
    queue.connection.call(command("DEL", queue.keys.of("owed")))
    assert go_on(queue) == 0
    assert queue.contents().records.keys() == {"a", "b"}


def test_a_newer_message_of_the_same_id_is_kept(queue: Queue) -> None:
    """An entry speaks of the message that was due when it says."""
    queue.join("g")
    queue.send("a~")
    queue.ack(*queue.read("g"))
    queue.advance(1)
    queue.send("a~", due="+1000")
    assert go_on(queue) == 0
    assert queue.contents().waiting.keys() == {"a~"}


def test_a_newer_message_due_at_the_same_time_is_kept(queue: Queue) -> None:
    """It was sent after the entry."""
    queue.join("g")
    queue.send("a", due=str(EPOCH_MS))
    taken = queue.take("g")
    queue.connection.call(command("HDEL", queue.keys.of("messages"), "a"))
    queue.catch_up()
    queue.send("a", due=str(EPOCH_MS), body=b"new")
    assert taken
    assert go(queue, limit=1) == ("more", 0)
    assert queue.contents().records.keys() == {"a"}


def test_what_waits_or_died_for_all_is_kept(queue: Queue) -> None:
    """It never was the group's."""
    queue.join("g")
    queue.send("dead", due="+1", ttl_ms=1)
    queue.advance(5)
    queue.sweep()
    queue.connection.call(command("XADD", queue.keys.of("ready"), "*", "id", "dead", "due", queue.now_ms - 4, "n", 1))
    assert go_on(queue) == 0
    assert queue.contents().garbage.keys() == {"/dead"}


def test_a_cancelled_message_ends(queue: Queue) -> None:
    """Its id is free again, as if its delivery had been settled."""
    queue.join("g")
    queue.send("a")
    queue.read("g")
    assert queue.cancel("a") == ["delivered"]
    assert go_on(queue) == 1
    assert queue.contents().left == []


def test_groups_that_joined_later_make_steps_small(queue: Queue) -> None:
    """Messages of the only group are in no list of owed ones: each step looks whether the others have them."""
    ids = [f"m{n}" for n in range(40)]
    queue.join("g")
    queue.send_all([outgoing(id) for id in ids])
    queue.take("g")
    queue.join(*(f"later{n}" for n in range(100)))
    outcome, ended = go(queue, limit=ALL)
    assert outcome == "more"
    assert 1 <= ended <= 10
    assert go_on(queue) == len(ids) - ended
    assert queue.contents().left == []
