"""promote: waiting and retry → ready."""

from collections import Counter
from collections.abc import Sequence

import pytest
import redis

from chaos.hostile import LAST_ENTRY
from lisa_common.errors import ServerError
from lisa_common.protocol.call import command
from lisa_common.protocol.managing import Promoted
from support.queue import EPOCH_MS, Queue, outgoing


def test_never_early(queue: Queue) -> None:
    """A message is promoted in the millisecond it is due, not before (promise 1), whatever its priority."""
    queue.send_all([outgoing("a", due="+500"), outgoing("p", due="+500", priority=255)])
    queue.advance(499)
    assert queue.promote() == Promoted((EPOCH_MS + 499) * 1000, 0, EPOCH_MS + 500, more=False)
    assert queue.contents().stream == {}
    queue.advance(1)
    assert queue.promote() == Promoted((EPOCH_MS + 500) * 1000, 2, None, more=False)
    contents = queue.contents()
    assert contents.waiting == {}
    assert contents.stream.popitem()[1] == {"id": "a", "due": str(EPOCH_MS + 500), "n": "1"}


def test_the_next_due_time(queue: Queue) -> None:
    """However many are due, the first that is not says when to come again; a priority does not make it earlier."""
    queue.send_all([outgoing(f"{n}", due=f"+{n}") for n in (1, 2, 3, 5)])
    queue.send("last", due="+9", priority=1)
    for after_ms, promoted, next_ms in ((1, 1, 2), (3, 2, 5), (5, 1, 9)):
        queue.advance(EPOCH_MS + after_ms - queue.now_ms)
        assert queue.promote() == Promoted((EPOCH_MS + after_ms) * 1000, promoted, EPOCH_MS + next_ms, more=False)


def test_order_is_due_time_then_priority(queue: Queue) -> None:
    """Lowest due time first; within a millisecond the highest priority."""
    queue.send_all(
        [
            outgoing("late", due="+2", priority=255),
            outgoing("low", due="+1", priority=1),
            outgoing("high", due="+1", priority=255),
            outgoing("mid", due="+1", priority=2),
            outgoing("none", due="+1"),
        ]
    )
    queue.advance(2)
    queue.promote()
    assert queue.contents().ready_ids == ["high", "mid", "low", "none", "late"]


def test_batches(queue: Queue) -> None:
    """At most `limit` of each set; a full batch says that there may be more."""
    queue.send_all([outgoing(f"{n}", due=f"+{n}") for n in range(1, 6)])
    queue.advance(4)
    assert queue.promote(limit=2) == Promoted(queue.now_ms * 1000, 2, EPOCH_MS + 3, more=True)
    assert queue.promote(limit=2) == Promoted(queue.now_ms * 1000, 2, EPOCH_MS + 5, more=True)
    assert queue.promote(limit=2) == Promoted(queue.now_ms * 1000, 0, EPOCH_MS + 5, more=False)


@pytest.mark.parametrize("priority", [0, 7])
@pytest.mark.parametrize("limit", [1, 2, 4, 5, 9])
def test_batches_of_one_due_time(queue: Queue, *, limit: int, priority: int) -> None:
    """In full batches, and in one with others that are due later; each with its due time, in the order of their ids."""
    queue.send_all([outgoing(id, due="+3", priority=priority) for id in "dbca"])
    queue.send("later", due="+4")
    queue.advance(4)
    promoted = []
    while (each := queue.promote(limit=limit, with_dues=True)).count:
        promoted.append(each)
    assert [each.count for each in promoted[:-1]] == [limit] * (len(promoted) - 1)
    assert sum((Counter(dict(each.dues)) for each in promoted), Counter()) == {EPOCH_MS + 3: 4, EPOCH_MS + 4: 1}
    contents = queue.contents()
    assert [(fields["id"], fields["due"]) for fields in contents.stream.values()] == [
        *((id, str(EPOCH_MS + 3)) for id in "abcd"),
        ("later", str(EPOCH_MS + 4)),
    ]
    assert contents.waiting == {}


@pytest.mark.parametrize("dues", [("+1", "+1", "+1"), ("+1", "+2", "+3"), ("+1", "+1", "+3")])
@pytest.mark.parametrize("limit", [2, 3, 9])
def test_into_a_stream_that_takes_no_more(
    queue: Queue, client: redis.Redis, *, dues: Sequence[str], limit: int
) -> None:
    """Another may have added an entry of the highest id: what cannot become ready waits on, when it was due."""
    queue.send_all([outgoing(id, due=due) for id, due in zip("abc", dues, strict=True)])
    waiting = queue.contents().waiting
    client.xadd(queue.keys.of("ready"), {"x": "y"}, id=LAST_ENTRY)
    queue.advance(3)
    with pytest.raises(ServerError):
        queue.promote(limit=limit)
    assert queue.contents().waiting == waiting


def test_retry_goes_to_its_group(queue: Queue) -> None:
    """A retry's entry names its group, its attempt and when it fell due; the failure remembers the entry."""
    queue.join("g", "h")
    queue.send("a")
    (delivery,) = queue.read("g")
    queue.nack(delivery, error="no", delay_ms=300)
    queue.advance(299)
    assert queue.promote().count == 0
    queue.advance(1)
    assert queue.promote().count == 1
    contents = queue.contents()
    assert contents.retry == {}
    entry, fields = contents.stream.popitem()
    due = str(EPOCH_MS)
    assert fields == {"id": "a", "due": due, "n": "2", "g": "g", "at": str(EPOCH_MS + 300)}
    assert queue.failure("g/a").next_entry == entry
    assert [d.attempt for d in queue.read("g")] == [2]
    assert [d.attempt for d in queue.read("h")] == [1]


def test_both_sets_in_one_call(queue: Queue) -> None:
    """The limit holds for each set, and the next due time is that of both."""
    queue.join("g")
    queue.send_all([outgoing("a"), outgoing("b")])
    queue.nack(*queue.read("g"), delay_ms=10)
    queue.send_all([outgoing("c", due="+10"), outgoing("d", due="+20")])
    queue.advance(10)
    assert queue.promote(limit=1) == Promoted(queue.now_ms * 1000, 2, EPOCH_MS + 10, more=True)
    assert queue.promote(limit=2) == Promoted(queue.now_ms * 1000, 1, EPOCH_MS + 20, more=False)


def test_owed_is_written_for_two_groups(queue: Queue) -> None:
    """The groups that exist when a message becomes ready owe it, not those that existed at send."""
    queue.join("g")
    queue.send("a", due="+5")
    queue.join("h")
    queue.advance(5)
    queue.promote()
    assert queue.contents().owed == {"a": "g,h"}


def test_retry_without_a_failure(queue: Queue) -> None:
    """Should the failure have been deleted, the retry is made all the same, as a second attempt at least."""
    queue.join("g")
    queue.send("a")
    queue.nack(*queue.read("g"), delay_ms=5)
    queue.connection.call(command("DEL", queue.keys.of("failures")))
    queue.advance(5)
    queue.promote()
    (delivery,) = queue.read("g")
    assert delivery.attempt == 2
    queue.ack(delivery)
    assert queue.contents().left == ["finished"]


def test_nothing_there(queue: Queue) -> None:
    """A topic without keys has nothing to promote, and gets no keys by that."""
    assert queue.promote() == Promoted(EPOCH_MS * 1000, 0, None, more=False)
    assert queue.contents().left == []
    assert queue.contents().stream == {}


def test_thousand_at_once(queue: Queue) -> None:
    """1,000 messages and 1,000 retries in one call."""
    queue.join("g", "h")
    queue.send_all([outgoing(f"r{n}") for n in range(1_000)])
    queue.nack(*queue.read("g"), delay_ms=5)
    queue.send_all([outgoing(f"w{n}", due="+5") for n in range(1_000)])
    queue.advance(5)
    assert queue.promote(limit=1_000) == Promoted(queue.now_ms * 1000, 2_000, None, more=True)
    assert len(queue.contents().stream) == 3_000


def test_what_is_no_copy_does_not_cost_the_others_their_retry(queue: Queue) -> None:
    """A foreign member of the retry set is taken out like the others, and no group is given it."""
    queue.join("billing")
    queue.send("m")
    queue.promote()
    queue.nack(*queue.read("billing"), delay_ms=0)
    queue.connection.call(command("ZADD", queue.keys.of("retry"), 0, "noslash", queue.now_ms, "x/y"))
    queue.promote()
    assert queue.contents().retry == {}
    assert [delivery.id for delivery in queue.read("billing")] == ["m"]
