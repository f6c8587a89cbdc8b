"""forget_drop: that a topic was dropped is forgotten, unless it was dropped again."""

from lisa_common.protocol.call import command
from lisa_common.protocol.managing import forget_drop
from support.queue import Queue


def test_only_the_mark_that_was_read_is_forgotten(queue: Queue) -> None:
    """A drop that came meanwhile stays known."""
    dropped = queue.keys.of("dropped")
    queue.connection.call(command("HSET", dropped, "orders", "2", "others", "1"))
    assert not queue.connection.call(forget_drop(queue.keys, b"1"))
    assert queue.connection.call(forget_drop(queue.keys, b"2"))
    assert not queue.connection.call(forget_drop(queue.keys, b"2"))
    assert queue.connection.call(command("HGETALL", dropped)) == [b"others", b"1"]
