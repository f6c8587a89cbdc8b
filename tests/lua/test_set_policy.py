"""set_policy: two who change what the registry says of a topic do not overwrite each other."""

from lisa_common.model.policy import Policy
from lisa_common.protocol.call import command
from lisa_common.protocol.registry import store_policy
from support.queue import Queue


def test_only_what_was_read_is_changed(queue: Queue) -> None:
    """Whoever has read something else is told, and reads again."""

    def change(before: bytes | None, retries: int) -> bool:
        call = store_policy(queue.keys.prefix, queue.keys.topic, before, Policy(max_retries=retries))
        return queue.connection.call(call)

    stored = command("HGET", queue.keys.of("topics"), queue.keys.topic)
    assert change(None, 1)
    assert queue.connection.call(stored) == b'{"max_retries":1}'
    assert not change(None, 2)
    assert not change(b"{}", 2)
    assert queue.connection.call(stored) == b'{"max_retries":1}'
    assert change(b'{"max_retries":1}', 2)


def test_only_what_was_read_is_forgotten(queue: Queue) -> None:
    """A topic that somebody else has changed stays."""
    prefix, topic = queue.keys.prefix, queue.keys.topic
    assert queue.connection.call(store_policy(prefix, topic, None, Policy(max_retries=1)))
    assert not queue.connection.call(store_policy(prefix, topic, b"{}", None))
    assert queue.connection.call(store_policy(prefix, topic, b'{"max_retries":1}', None))
    assert queue.connection.call(command("HEXISTS", queue.keys.of("topics"), topic)) == 0
