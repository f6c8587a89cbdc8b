"""retire: a dropped topic leaves the registry, unless it was declared anew."""

from lisa_common.call import command
from lisa_common.protocol.managing import retire
from support.queue import Queue


def test_only_the_entry_that_was_read_is_taken_out(queue: Queue) -> None:
    """Whoever declared the topic meanwhile keeps it."""
    registry = queue.keys.of("topics")
    queue.connection.call(command("HSET", registry, "orders", "dropped", "others", "{}"))
    assert not queue.connection.call(retire(queue.keys, b"other"))
    assert queue.connection.call(retire(queue.keys, b"dropped"))
    assert not queue.connection.call(retire(queue.keys, b"dropped"))
    assert queue.connection.call(command("HGETALL", registry)) == [b"others", b"{}"]
