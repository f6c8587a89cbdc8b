"""update: another content and due time for what still waits."""

import pytest

from lisa_common.model.record import unpack_record
from lisa_common.protocol import producing
from lisa_common.protocol.call import command
from support.queue import Queue, outgoing


def _update(queue: Queue, *messages: producing.Outgoing) -> list[tuple[str, int]]:
    call = producing.update(queue.keys, messages, now_ms=queue.now_ms)
    return [(outcome.value, due_ms) for outcome, due_ms in queue.connection.call(call)]


def _record(queue: Queue, id: str) -> bytes:
    data: bytes = queue.connection.call(command("HGET", queue.keys.of("messages"), id))
    return data


def test_waiting_messages_change(queue: Queue) -> None:
    """Body, limits and due time are new; the time of the send stays."""
    sent_ms = queue.now_ms
    queue.send_all([outgoing("a", due="+9000", ttl_ms=50), outgoing("b", due="+9000")])
    queue.advance(10)
    changed = outgoing("a", due="+2000", body=b"new", priority=3)
    assert _update(queue, changed, outgoing("b", due="+1", ttl_ms=7)) == [
        ("updated", queue.now_ms + 2000),
        ("updated", queue.now_ms + 1),
    ]
    record = unpack_record(_record(queue, "a"))
    assert (record.body, record.due_ms, record.sent_ms) == (b"new", queue.now_ms + 2000, sent_ms)
    assert (record.ttl_ms, record.priority) == (None, 3)
    expiring = queue.connection.call(command("ZRANGE", queue.keys.of("expiring"), 0, -1, "WITHSCORES"))
    assert expiring == [b"b", str(queue.now_ms + 8).encode()]
    scores = queue.connection.call(command("ZMSCORE", queue.keys.of("waiting"), "a", "b"))
    assert [float(score) for score in scores] == [queue.now_ms + 2000 - 3 / 256, queue.now_ms + 1]


@pytest.mark.parametrize("state", ["ready", "delivered", "finished", "unknown"])
def test_others_stay(queue: Queue, state: str) -> None:
    """A message that waits no longer is not changed, and one that is unknown is not made."""
    queue.join("g")
    if state != "unknown":
        queue.send_all([outgoing("a")])
    if state in ("delivered", "finished"):
        (delivery,) = queue.read("g")
        if state == "finished":
            queue.ack(delivery)
    before = _record(queue, "a")
    expected = "late" if state in ("ready", "delivered") else state
    assert _update(queue, outgoing("a", due="+1", body=b"new")) == [(expected, 0)]
    assert _record(queue, "a") == before
    assert not queue.connection.call(command("EXISTS", queue.keys.of("waiting")))
