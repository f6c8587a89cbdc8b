"""list_pending: what a consumer has read and not settled."""

from lisa_common.protocol import consuming
from lisa_common.protocol.call import command
from support.queue import Queue, outgoing


def _held(queue: Queue, consumer: str, **options: object) -> list[str | None]:
    call = consuming.list_pending(queue.keys, "g", consumer, **({"limit": 100} | options))  # type: ignore[arg-type]
    return [entry.id for entry in queue.connection.call(call)]


def test_only_the_consumers_own_and_pending(queue: Queue) -> None:
    """What another consumer has, what is acked, and what nobody has read are not among it."""
    queue.join("g")
    queue.send_all([outgoing(id) for id in "abcde"])
    a, b, _ = queue.read("g", "c1", limit=3)
    queue.read("g", "c2", limit=1)
    queue.ack(a)
    assert _held(queue, "c1") == ["b", "c"]
    assert _held(queue, "c2") == ["d"]
    assert _held(queue, "nobody") == []
    (entry, _) = queue.connection.call(consuming.list_pending(queue.keys, "g", "c1", limit=2))
    assert entry == b.entry


def test_range_and_limit(queue: Queue) -> None:
    """The range begins beyond one entry, ends with another, and is cut at the limit."""
    queue.join("g")
    queue.send_all([outgoing(id) for id in "abcde"])
    first, *_, fourth, _ = (delivery.entry.entry for delivery in queue.read("g"))
    assert _held(queue, "c", after=first, last=fourth) == ["b", "c", "d"]
    assert _held(queue, "c", after=first, limit=2) == ["b", "c"]


def test_entry_that_the_stream_lost(queue: Queue) -> None:
    """A pending entry that was deleted is listed without an id, so that it can be settled."""
    queue.join("g")
    queue.send_all([outgoing("a"), outgoing("b")])
    lost, _ = queue.read("g")
    queue.connection.call(command("XDEL", queue.keys.of("ready"), lost.entry.entry))
    assert _held(queue, "c") == [None, "b"]
