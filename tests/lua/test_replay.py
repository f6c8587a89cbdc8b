"""replay: dead letters are ready again."""

from collections.abc import Callable

import pytest

from lisa_common.model.record import unpack_record
from lisa_common.protocol.call import Flow, command
from lisa_manager.admin.garbage import shard
from support.queue import EPOCH_MS, Queue, outgoing


def test_ready_again_with_all_attempts(queue: Queue) -> None:
    """A replayed message is due now, with all its attempts before it, in its group alone."""
    queue.join("g", "h")
    queue.send("a", max_retries=1, body=b"hello")
    for _ in range(2):
        queue.nack(*queue.read("g"), error="no", delay_ms=0)
        queue.promote()
    queue.ack(*queue.read("h"))
    queue.advance(50)
    assert queue.replay("g/a") == ["replayed"]
    contents = queue.contents()
    assert contents.left == ["records", "finished", "owed", "failures"]
    assert contents.stream.popitem()[1] == {
        "id": "a",
        "due": str(EPOCH_MS),
        "n": "1",
        "g": "g",
        "at": str(EPOCH_MS + 50),
    }
    failure = queue.failure("g/a")
    assert (failure.attempts, failure.reason, failure.error) == (0, "replayed", "no")
    assert queue.read("h") == []
    attempts = []
    while delivery := next(iter(queue.read("g")), None):
        attempts.append((delivery.attempt, delivery.body))
        queue.nack(delivery, delay_ms=0)
        queue.promote()
    assert attempts == [(1, b"hello"), (2, b"hello")]
    assert queue.contents().garbage.keys() == {"g/a"}


def test_without_a_time_to_live(queue: Queue) -> None:
    """What had expired does not expire again."""
    queue.join("g")
    queue.send("a", due="+5", ttl_ms=100, priority=7, max_retries=3, body=b"body", headers={"k": "v"})
    before = unpack_record(queue.contents().records["a"])
    queue.advance(1_000)
    queue.sweep()
    assert queue.replay("/a") == ["replayed"]
    after = unpack_record(queue.contents().records["a"])
    assert after.ttl_ms is None
    assert (after.priority, after.max_retries, after.body) == (before.priority, before.max_retries, before.body)
    assert (after.headers, after.due_ms, after.sent_ms) == (before.headers, before.due_ms, before.sent_ms)
    (delivery,) = queue.read("g")
    assert (delivery.attempt, delivery.due_ms) == (1, EPOCH_MS + 1_000)
    assert queue.ack(delivery) == ["acked"]
    assert queue.contents().left == ["finished"]


def test_what_no_group_had_goes_to_all(queue: Queue) -> None:
    """A message that died before any delivery becomes ready for every group there is now."""
    queue.send("a", due="+5", ttl_ms=1)
    queue.advance(10)
    queue.sweep()
    queue.join("g", "h")
    assert queue.replay("/a") == ["replayed"]
    contents = queue.contents()
    assert contents.left == ["records", "owed"]
    assert contents.owed == {"a": "g,h"}
    assert [d.id for d in queue.read("g")] == [d.id for d in queue.read("h")] == ["a"]


def test_after_the_clock_was_set_back(queue: Queue) -> None:
    """What was sent and died in the future is a message like any other once it is replayed."""
    queue.join("g")
    queue.catch_up()
    queue.advance(3_600_000)
    queue.send("a", due="+1", ttl_ms=1)
    queue.advance(2)
    queue.sweep()
    queue.now_ms = EPOCH_MS
    assert queue.replay("/a") == ["replayed"]
    assert [outcome for outcome, _ in queue.nack(*queue.read("g"))] == ["retry"]


def test_without_any_group(queue: Queue) -> None:
    """Without groups it waits in ready for the first one."""
    queue.send("a", ttl_ms=1)
    queue.advance(10)
    queue.sweep()
    assert queue.replay("/a") == ["replayed"]
    queue.join("g")
    assert [d.id for d in queue.read("g")] == ["a"]


def test_unknown_and_no_group(queue: Queue) -> None:
    """What is no dead letter changes nothing; one whose group is gone is kept."""
    queue.join("g")
    queue.send_all([outgoing("a"), outgoing("b")])
    queue.nack(*queue.read("g", limit=1), rejected=True)
    before = queue.contents()
    assert queue.replay("g/b", "g/c", "/a", "h/a") == ["unknown"] * 4
    assert queue.contents() == before
    queue.connection.call(command("XGROUP", "DESTROY", queue.keys.of("ready"), "g"))
    assert queue.replay("g/a") == ["no group"]
    assert queue.contents().garbage == before.garbage


@pytest.mark.parametrize("group", ["g", ""])
def test_what_cannot_be_read_stays(queue: Queue, group: str) -> None:
    """A record of a later release is for one that can read it; a dead letter without a record is none."""
    queue.join("g")
    queue.send("a", due="+1", ttl_ms=1)
    if not group:
        queue.advance(2)
        queue.sweep()
    else:
        queue.advance(1)
        queue.promote()
        queue.nack(*queue.read("g"), rejected=True)
    copy, records = f"{group}/a", queue.keys.of("messages")
    queue.connection.call(command("HSET", records, "a", b"\2" + queue.contents().records["a"][1:]))
    before = queue.contents()
    assert queue.replay(copy) == ["unreadable"]
    assert queue.contents() == before
    queue.connection.call(command("HDEL", records, "a"))
    assert queue.replay(copy) == ["unknown"]
    contents = queue.contents()
    assert (contents.garbage, contents.failures) == ({}, {})


def test_twice_is_once(queue: Queue) -> None:
    """A replay of what was replayed already does nothing, also within one call."""
    queue.join("g")
    queue.send("a")
    queue.nack(*queue.read("g"), rejected=True)
    assert queue.replay("g/a", "g/a") == ["replayed", "unknown"]
    assert len(queue.read("g")) == 1


def test_ids_with_slashes(queue: Queue) -> None:
    """An id may hold slashes; the first one of a copy ends the group."""
    queue.join("g")
    queue.send("a/b/c")
    queue.nack(*queue.read("g"), rejected=True)
    assert queue.replay("g/a/b/c") == ["replayed"]
    assert [d.id for d in queue.read("g")] == ["a/b/c"]


def test_thousand_at_once(queue: Queue) -> None:
    """1,000 dead letters in one call."""
    queue.join("g", "h")
    queue.send_all([outgoing(f"{n}", ttl_ms=9) for n in range(1_000)])
    queue.nack(*queue.read("g"), rejected=True)
    assert set(queue.replay(*(f"g/{n}" for n in range(1_000)))) == {"replayed"}
    assert len(queue.read("g")) == 1_000


@pytest.mark.parametrize("verb", [shard.replay, shard.purge])
def test_a_letter_that_died_again_is_left(queue: Queue, verb: Callable[..., Flow[list[str]]]) -> None:
    """What was listed may have been replayed and have died again, for a reason that was not selected."""
    queue.join("g")
    queue.send("a")
    queue.nack(*queue.read("g"), rejected=True)
    listed, _ = queue.connection.run(shard.named(queue.keys, ["a"]))
    queue.advance(1)
    queue.replay("g/a")
    queue.nack(*queue.read("g"), rejected=True)
    before = queue.contents()
    assert queue.connection.run(verb(queue.keys, listed)) == ["unknown"]
    assert queue.contents() == before
    again, _ = queue.connection.run(shard.named(queue.keys, ["a"]))
    assert queue.connection.run(verb(queue.keys, again)) != ["unknown"]
