"""A server without memory: sends are refused whole, and everything that empties it goes on."""

from collections.abc import Callable, Iterator

import pytest

from lisa_common.client.connection import Connection
from lisa_common.errors import Refused
from lisa_common.model.keys import ShardKeys
from lisa_common.protocol.call import command
from support import Server
from support.queue import STEADY, Queue, outgoing


@pytest.fixture
def queue(own_server: Callable[..., Server]) -> Iterator[Queue]:
    """A topic on a server of the test's own."""
    with Connection(own_server(maxmemory_policy="noeviction").url) as connection:
        yield Queue(connection, ShardKeys("lisa", "orders"))


def fill(queue: Queue) -> None:
    """From now on the server refuses whatever needs memory."""
    queue.connection.call(command("CONFIG", "SET", "maxmemory", 1))
    with pytest.raises(Refused, match="maxmemory"):
        queue.connection.call(command("SET", "x", "y"))


def test_send_is_refused_whole(queue: Queue) -> None:
    """Not one message of a batch is stored, and the caller is told."""
    queue.join("g")
    fill(queue)
    before = queue.contents()
    with pytest.raises(Refused, match="maxmemory"):
        queue.send_all([outgoing("a", due="+5"), outgoing("b", ttl_ms=5)])
    assert queue.contents() == before
    assert before.left == []


def test_a_full_server_drains(queue: Queue) -> None:
    """Promote, read, ack, nack, reclaim, release and extend work without memory."""
    queue.join("g", "h")
    queue.send_all([outgoing(id, due="+5") for id in ("acked", "nacked", "kept", "released")])
    fill(queue)
    queue.advance(5)
    assert queue.promote().count == 4
    acked, nacked, kept, released = queue.read("g")
    assert queue.ack(acked) == ["acked"]
    assert queue.nack(nacked, delay_ms=0)[0][0] == "retry"
    assert queue.release(released) == 1
    assert queue.promote().count == 1
    assert queue.extend("c", kept) == [True]
    assert len(queue.ack(*queue.read("h"))) == 4
    queue.advance(STEADY.visibility_ms)
    assert queue.reclaim("g").retry == 1
    queue.advance(60_000)
    queue.promote()
    assert set(queue.ack(*queue.read("g"))) == {"acked"}
    contents = queue.contents()
    assert contents.left == ["finished"]
    assert queue.read("h") == []
    assert queue.trim().entries_left == 0


def test_a_full_server_can_be_emptied(queue: Queue) -> None:
    """Cancel, sweep, replay and purge work without memory, wherever the messages stand."""
    queue.join("g")
    queue.send_all([outgoing("ready"), outgoing("held"), outgoing("retried"), outgoing("dead"), outgoing("dead2")])
    _, held, retried, dead, dead2 = queue.read("g")
    queue.nack(retried)
    queue.nack(dead, rejected=True)
    queue.nack(dead2, rejected=True)
    queue.send_all([outgoing("waits", due="+5"), outgoing("ttl", due="+5", ttl_ms=5), outgoing("fresh")])
    fill(queue)
    assert queue.cancel("held") == ["delivered"]
    assert queue.cancel("waits") == ["cancelled"]
    assert queue.cancel("fresh") == ["cancelled"]
    assert queue.cancel("retried") == ["cancelled"]
    assert queue.replay("g/dead") == ["replayed"]
    assert queue.purge("g/dead2") == 1
    queue.advance(10)
    assert queue.sweep().expired == 1
    assert queue.nack(held)[0][0] == "gone"
    assert queue.purge("/ttl") == 1
    assert [d.id for d in queue.read("g")] == ["dead"]


def test_a_full_server_takes_back_what_a_rate_limit_holds_up(queue: Queue) -> None:
    """A handler that raised RateLimited gives its message back, and shuts the door."""
    queue.join("g")
    queue.send("a")
    (held,) = queue.read("g")
    fill(queue)
    assert queue.release(held, shut_ms=50) == 1
    assert queue.promote().count == 0
    queue.advance(50)
    assert queue.promote().count == 1


def test_reschedule_is_refused_whole(queue: Queue) -> None:
    """A reschedule needs memory: it is refused, and nothing has changed."""
    queue.send_all([outgoing("a", due="+5"), outgoing("b", due="+5")])
    fill(queue)
    before = queue.contents()
    with pytest.raises(Refused, match="maxmemory"):
        queue.reschedule(("a", "+9"), ("b", "+9"))
    assert queue.contents() == before
