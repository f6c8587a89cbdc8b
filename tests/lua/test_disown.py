"""disown: what only a destroyed group's entries tell of ends."""

import pytest

from lisa_common.call import command, script
from support.queue import EPOCH_MS, Queue


def disown(queue: Queue, group: str) -> int:
    """All entries of the stream, as if the group could have had each."""
    rows = [(e, f["id"], f["due"], f.get("g", "")) for e, f in queue.contents().stream.items()]
    mine = [row for row in rows if row[3] in {"", group}]
    ended: int = queue.connection.call(script("disown", queue.keys, mine, group=group))
    return ended


def test_the_only_groups_messages_end_with_their_entries(queue: Queue) -> None:
    """Delivered or not."""
    queue.join("g")
    queue.send("a", ttl_ms=9)
    queue.send("b")
    queue.read("g", limit=1)
    queue.destroy("g")
    assert disown(queue, "g") == 2
    assert queue.contents().left == []
    assert queue.contents().stream == {}


def test_what_another_group_owes_is_kept(queue: Queue) -> None:
    """Whether it is named in `owed`, or is the only group that the message was sent to."""
    queue.join("h")
    queue.send("only h's")
    queue.join("g")
    queue.send("of both")
    queue.ack(*queue.read("g"))
    queue.destroy("g")
    assert disown(queue, "g") == 0
    assert {delivery.id for delivery in queue.read("h")} == {"only h's", "of both"}


def test_what_the_other_group_was_made_too_late_for_ends(queue: Queue) -> None:
    """No other group has it: its place was in the destroyed one, delivered or to be retried."""
    queue.join("g")
    queue.send("delivered")
    queue.send("retried")
    _, retried = queue.read("g")
    queue.nack(retried, delay_ms=0)
    queue.promote()
    queue.join("h")
    queue.send("new")
    queue.destroy("g")
    queue.leave("g", "new")
    assert disown(queue, "g") == 2
    assert queue.contents().records.keys() == {"new"}
    assert queue.contents().failures == {}


def test_a_newer_message_of_the_same_id_is_kept(queue: Queue) -> None:
    """An entry speaks of the message that was due when it says."""
    queue.join("g")
    queue.send("a~")
    queue.ack(*queue.read("g"))
    queue.advance(1)
    queue.send("a~", due="+1000")
    queue.destroy("g")
    assert disown(queue, "g") == 0
    assert queue.contents().waiting.keys() == {"a~"}


@pytest.mark.parametrize("left", ["nobody", "h"])
def test_a_newer_message_due_at_the_same_time_is_kept(queue: Queue, left: str) -> None:
    """It was sent after the entry."""
    queue.join("g")
    queue.send("a", due=str(EPOCH_MS))
    queue.nack(*queue.read("g"), rejected=True)
    queue.purge("g/a")
    if left == "h":
        queue.join("h")
    top = list(queue.contents().stream)
    queue.destroy("g")
    queue.catch_up()
    queue.send("a", due=str(EPOCH_MS), body=b"new")
    rows = [(entry, "a", EPOCH_MS, "") for entry in top]
    assert queue.connection.call(script("disown", queue.keys, rows, group="g")) == 0
    queue.join("h")
    assert [d.body for d in queue.read("h")] == [b"new"]


def test_what_waits_or_died_for_all_is_kept(queue: Queue) -> None:
    """It never was the group's."""
    queue.join("g")
    queue.send("dead", due="+1", ttl_ms=1)
    queue.advance(5)
    queue.sweep()
    queue.destroy("g")
    queue.connection.call(command("XADD", queue.keys.of("ready"), "*", "id", "dead", "due", queue.now_ms - 4, "n", 1))
    assert disown(queue, "g") == 0
    assert queue.contents().garbage.keys() == {"/dead"}
