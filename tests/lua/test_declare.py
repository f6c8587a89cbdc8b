"""declare, and set_policy with patterns: no topic gets what former policies of patterns gave."""

from lisa_common.model.policy import Policy
from lisa_common.protocol.call import command, script
from lisa_common.protocol.registry import store_patterns, store_policy
from support.queue import Queue


def _declare(queue: Queue, patterns: str, policy: str = "{}") -> object:
    call = script("declare", queue.keys, topic=queue.keys.topic, policy=policy, patterns=patterns)
    return queue.connection.call(call)


def _stored(queue: Queue) -> bytes | None:
    return queue.connection.call(command("HGET", queue.keys.of("topics"), queue.keys.topic))


def test_a_topic_is_declared_once(queue: Queue) -> None:
    """The second declaration changes nothing."""
    assert _declare(queue, "", '{"max_retries":1}') == 1
    assert _declare(queue, "") == 0
    assert _stored(queue) == b'{"max_retries":1}'


def test_a_topic_is_declared_by_the_present_patterns_only(queue: Queue) -> None:
    """Whoever knows others is told the present ones."""
    assert queue.connection.call(store_patterns(queue.keys.prefix, None, "[1]"))
    assert _declare(queue, "") == b"[1]"
    assert _declare(queue, "[2]") == b"[1]"
    assert _stored(queue) is None
    assert _declare(queue, "[1]") == 1
    assert queue.connection.call(store_patterns(queue.keys.prefix, b"[1]", ""))
    assert _declare(queue, "[1]") == b""


def test_a_policy_is_set_by_the_present_patterns_only(queue: Queue) -> None:
    """Unless it keeps what patterns gave."""
    prefix, topic = queue.keys.prefix, queue.keys.topic
    assert _declare(queue, "") == 1
    assert queue.connection.call(store_patterns(prefix, None, "[1]"))
    assert not queue.connection.call(store_policy(prefix, topic, b"{}", Policy(max_retries=1), patterns=None))
    assert _stored(queue) == b"{}"
    assert queue.connection.call(store_policy(prefix, topic, b"{}", Policy(max_retries=1), patterns=b"[1]"))
    assert queue.connection.call(store_policy(prefix, topic, b'{"max_retries":1}', Policy(max_retries=2)))


def test_patterns_are_changed_by_one_at_a_time(queue: Queue) -> None:
    """The other one reads again."""
    assert queue.connection.call(store_patterns(queue.keys.prefix, None, "[1]"))
    assert not queue.connection.call(store_patterns(queue.keys.prefix, None, "[2]"))
    assert queue.connection.call(store_patterns(queue.keys.prefix, b"[1]", "[2]"))
