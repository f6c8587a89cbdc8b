"""inspect: all that is known of one message."""

from lisa_common.protocol.call import command
from lisa_manager.admin.audit.evidence import Copy, Evidence
from lisa_manager.admin.audit.snapshot import Look, look, read_snapshot
from support.queue import Queue


def see(queue: Queue, id: str, *, since: str = "0-0", suspect: Evidence | None = None) -> Look:
    """Looks at a message."""
    found: Look = queue.connection.call(look(queue.keys, suspect or Evidence(id), since))
    return found


def test_all_places_are_told(queue: Queue) -> None:
    """The record's times, the copies of each group, entries with their state, expiry."""
    queue.join("g", "h")
    queue.send("a", ttl_ms=9)
    queue.nack(*queue.read("g"), delay_ms=0)
    queue.promote()
    queue.read("g")
    found = see(queue, "a")
    base, retry = found.evidence.entries
    assert found.evidence.head is not None
    assert (found.evidence.head.due_ms, found.evidence.head.expires_ms) == (queue.now_ms, queue.now_ms + 9)
    assert found.evidence.owed == ("g", "h")
    assert found.evidence.expiring == queue.now_ms + 9
    assert (base.group, retry.group) == (None, "g")
    assert (found.groups["g"].has(base), found.groups["g"].has(retry), found.groups["h"].has(base)) == (
        False, True, True
    )  # fmt: skip
    assert found.evidence.copies["g"].failed
    assert found.whole


def test_unknown_is_nothing(queue: Queue) -> None:
    """No record, no score, no entry."""
    assert see(queue, "a").evidence == Evidence("a", copies={"": Copy()})


def test_entries_since_the_snapshot_and_hints_are_looked_at(queue: Queue) -> None:
    """Not the whole stream."""
    queue.send("a")
    snapshot = queue.connection.run(read_snapshot(queue.keys))
    assert see(queue, "a", since=snapshot.last).evidence.entries == []
    seen = see(queue, "a", since=snapshot.last, suspect=snapshot.of("a"))
    assert seen.evidence.entries == snapshot.of("a").entries
    queue.send("b")
    assert len(see(queue, "b", since=snapshot.last).evidence.entries) == 1


def test_groups_that_are_gone_are_looked_at_when_named(queue: Queue) -> None:
    """Their copies may still be in garbage."""
    queue.join("g")
    queue.send("a")
    queue.nack(*queue.read("g"), rejected=True)
    queue.connection.call(command("XGROUP", "DESTROY", queue.keys.of("ready"), "g"))
    suspect = Evidence("a", copies={"g": Copy(garbage=1.0)})
    assert see(queue, "a", suspect=suspect).evidence.copies["g"].garbage == queue.now_ms


def test_equal_looks_have_equal_prints(queue: Queue) -> None:
    """Other messages' doings do not count; a change of this one does."""
    queue.join("g")
    queue.send("a", due="+1000")
    before = see(queue, "a").print
    queue.send("b")
    queue.read("g")
    assert see(queue, "a").print == before
    queue.reschedule(("a", "+2000"))
    assert see(queue, "a").print != before
