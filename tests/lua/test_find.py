"""find: where a message stands."""

from lisa_common.protocol.call import command
from lisa_common.protocol.producing import CopyState, Found, State
from support.queue import EPOCH_MS, STEADY, Queue


def found(queue: Queue, id: str = "a") -> Found:
    """Finds a message that must be known, and changes nothing by it."""
    before = queue.contents()
    answer = queue.find(id)
    assert queue.contents() == before
    assert answer is not None
    return answer


def test_a_life(queue: Queue) -> None:
    """Waiting, ready, delivered, retry, garbage: each with due time and attempts."""
    queue.join("g")
    assert queue.find("a") is None
    queue.send("a", due="+5", max_retries=1, body=b"hello")
    answer = found(queue)
    assert (answer.state, answer.due_ms, answer.attempts, answer.copies) == (State.WAITING, EPOCH_MS + 5, 0, ())
    assert answer.record is not None
    assert answer.record.body == b"hello"
    queue.advance(5)
    queue.promote()
    assert (found(queue).state, found(queue).attempts) == (State.READY, 0)
    (first,) = queue.read("g")
    assert (found(queue).state, found(queue).attempts) == (State.DELIVERED, 1)
    assert [copy.consumer for copy in found(queue).copies] == ["c"]
    queue.nack(first, error="no", delay_ms=100)
    answer = found(queue)
    assert (answer.state, answer.due_ms, answer.attempts) == (State.RETRY, EPOCH_MS + 105, 1)
    assert [c.failure and c.failure.error for c in answer.copies] == ["no"]
    queue.advance(100)
    queue.promote()
    assert (found(queue).state, found(queue).attempts) == (State.READY, 1)
    (second,) = queue.read("g")
    assert (found(queue).state, found(queue).attempts) == (State.DELIVERED, 2)
    queue.nack(second)
    answer = found(queue)
    assert (answer.state, answer.attempts) == (State.GARBAGE, 2)
    assert answer.copies[0].at_ms == EPOCH_MS + 105


def test_finished(queue: Queue) -> None:
    """A finished id is known for its window."""
    queue.join("g")
    queue.send("a")
    queue.ack(*queue.read("g"))
    assert found(queue) == Found("a", State.FINISHED, None)
    queue.advance(STEADY.dedup_window_ms)
    assert queue.find("a") is None


def test_cancelled(queue: Queue) -> None:
    """A message cancelled while it is delivered says so until the delivery is settled."""
    queue.join("g")
    queue.send("a")
    queue.read("g")
    queue.cancel("a")
    assert found(queue) == Found("a", State.CANCELLED, None)


def test_without_a_group(queue: Queue) -> None:
    """A message is ready also while nobody reads, and dead also when nobody ever did."""
    queue.send("a", ttl_ms=5)
    assert found(queue).state == State.READY
    queue.advance(5)
    queue.sweep()
    answer = found(queue)
    assert (answer.state, answer.copies[0].group) == (State.GARBAGE, "")


def test_two_groups(queue: Queue) -> None:
    """Each group's copy is told; the message's state is that nearest to a delivery."""
    queue.join("g", "h", "i")
    queue.send("a")
    queue.nack(*queue.read("g"), delay_ms=70)
    queue.ack(*queue.read("i"))
    answer = found(queue)
    assert answer.state == State.READY
    assert [(c.group, c.state, c.at_ms) for c in answer.copies] == [
        ("g", State.RETRY, EPOCH_MS + 70),
        ("h", State.READY, None),
    ]
    queue.read("h")
    assert found(queue).state == State.DELIVERED


def test_a_younger_group_has_no_copy(queue: Queue) -> None:
    """A group that was made later is not told of, before and after the entry is trimmed."""
    queue.join("g")
    queue.send("a")
    queue.nack(*queue.read("g"), rejected=True)
    queue.join("h")
    assert [c.group for c in found(queue).copies] == ["g"]
    queue.trim()
    assert [c.group for c in found(queue).copies] == ["g"]


def test_released(queue: Queue) -> None:
    """A delivery that was given back has not begun."""
    queue.join("g")
    queue.send("a")
    queue.release(*queue.read("g"))
    copy = found(queue).copies[0]
    assert isinstance(copy, CopyState)
    assert (copy.state, copy.attempts) == (State.READY, 0)


def test_damaged_record(queue: Queue) -> None:
    """A message whose record cannot be read is found without it."""
    queue.send("a", due="+5")
    queue.connection.call(command("HSET", queue.keys.of("messages"), "a", b"\x09"))
    assert found(queue) == Found("a", State.WAITING, None)
