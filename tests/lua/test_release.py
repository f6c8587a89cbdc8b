"""release: deliveries that have not begun are given back."""

from collections.abc import Callable

import pytest
import redis

from lisa_common.errors import ServerError
from lisa_common.protocol.call import command
from lisa_common.protocol.managing import TOO_MANY_IN_FLIGHT
from support.queue import EPOCH_MS, STEADY, Queue, outgoing


def test_ready_again_without_spending_an_attempt(queue: Queue) -> None:
    """The next delivery is the same attempt, at once."""
    queue.join("g")
    queue.send("a", max_retries=0)
    (delivery,) = queue.read("g", "c1")
    queue.advance(10)
    assert queue.release(delivery) == 1
    contents = queue.contents()
    assert contents.left == ["records", "failures"]
    entry, fields = contents.stream.popitem()
    assert fields == {"id": "a", "due": str(EPOCH_MS), "n": "1", "g": "g", "at": str(EPOCH_MS + 10)}
    failure = queue.failure("g/a")
    assert (failure.attempts, failure.entry, failure.next_entry) == (0, delivery.entry.entry, entry)
    assert failure.reason == "released"
    (again,) = queue.read("g", "c2")
    assert again.attempt == 1
    assert queue.ack(again) == ["acked"]
    assert queue.contents().left == ["finished"]


def test_only_for_its_group(queue: Queue) -> None:
    """Other groups do not see what one gave back."""
    queue.join("g", "h")
    queue.send("a")
    queue.release(*queue.read("g"))
    assert [d.attempt for d in queue.read("h")] == [1]
    assert [d.attempt for d in queue.read("g")] == [1]
    assert queue.contents().groups["h"].pending.keys() == {next(iter(queue.contents().stream))}


def test_a_retry_keeps_its_attempt_and_error(queue: Queue) -> None:
    """Giving back a retry does not hide why there was one."""
    queue.join("g")
    queue.send("a")
    queue.nack(*queue.read("g"), error="no", delay_ms=0)
    queue.promote()
    queue.release(*queue.read("g"))
    failure = queue.failure("g/a")
    assert (failure.attempts, failure.reason, failure.error) == (1, "nack", "no")
    assert [d.attempt for d in queue.read("g")] == [2]


def test_stale_changes_nothing(queue: Queue) -> None:
    """What was settled or reclaimed is not given back, and not twice."""
    queue.join("g")
    queue.send_all([outgoing("acked"), outgoing("reclaimed"), outgoing("released")])
    acked, reclaimed, released = queue.read("g")
    queue.ack(acked)
    assert queue.release(released) == 1
    queue.advance(STEADY.visibility_ms)
    queue.reclaim("g")
    before = queue.contents()
    assert queue.release(acked, reclaimed, released) == 0
    assert queue.contents() == before


@pytest.mark.parametrize("shut_ms", [0, 500])
def test_cancelled_meanwhile(queue: Queue, shut_ms: int) -> None:
    """A cancelled message ends when it is given back, also where its topic is held back: its id is free at once."""
    queue.join("g")
    queue.send("a")
    (delivery,) = queue.read("g")
    queue.cancel("a")
    assert queue.release(delivery, shut_ms=shut_ms) == 0
    assert queue.contents().left == []
    assert queue.read("g") == []
    assert queue.contents().groups["g"].pending == {}


def test_a_later_message_of_the_id(queue: Queue) -> None:
    """What was purged or deleted meanwhile, and its id sent again, also for the same time, is not made ready twice."""
    queue.join("g")
    due = str(queue.now_ms)
    queue.send("a", due=due)
    (old,) = queue.read("g")
    queue.connection.call(command("HDEL", queue.keys.of("messages"), "a"))
    queue.catch_up()
    queue.send("a", due=due)
    assert queue.release(old) == 0
    assert len(queue.read("g")) == 1


@pytest.mark.parametrize("name", ["messages", "owed", "failures", "door"])
def test_a_foreign_key_changes_nothing(queue: Queue, client: redis.Redis, name: str) -> None:
    """Where a key is of another type, the deliveries stay pending."""
    queue.join("g")
    queue.send("a")
    (delivery,) = queue.read("g")
    client.delete(queue.keys.of(name))
    client.set(queue.keys.of(name), "of another type")
    with pytest.raises(ServerError):
        queue.release(delivery, shut_ms=500)
    pending = queue.connection.call(command("XPENDING", queue.keys.of("ready"), "g"))
    assert (pending[0], pending[1].decode()) == (1, delivery.entry.entry)


def test_managers_who_wait_for_a_place_are_woken(queue: Queue, wakes: Callable[[], list[str]]) -> None:
    """The end of a cancelled delivery makes room for another message."""
    queue.join("g")
    queue.limit(max_in_flight=1)
    queue.send("a")
    queue.promote()
    (delivery,) = queue.read("g")
    queue.send("b")
    assert queue.promote().held == TOO_MANY_IN_FLIGHT
    queue.cancel("a")
    wakes()
    assert queue.release(delivery) == 0
    assert wakes() == ["orders 0"]


def test_thousand_at_once(queue: Queue) -> None:
    """1,000 deliveries in one call."""
    queue.join("g")
    queue.send_all([outgoing(f"{n}") for n in range(1_000)])
    assert queue.release(*queue.read("g")) == 1_000
    assert len(queue.read("g")) == 1_000


def test_into_a_stream_that_takes_no_more(queue: Queue, client: redis.Redis) -> None:
    """Another may have added an entry of the highest id: nothing is taken out that can be put nowhere."""
    queue.join("g")
    queue.send("a")
    (delivery,) = queue.read("g", "worker~")
    client.xadd(queue.keys.of("ready"), {"x": "y"}, id="18446744073709551615-18446744073709551615")
    with pytest.raises(ServerError):
        queue.release(delivery)
    assert queue.contents().groups["g"].pending.keys() == {delivery.entry.entry}
    assert queue.extend("~refused~", delivery) == [True]
    queue.advance(queue.policy.visibility_ms)
    with pytest.raises(ServerError):
        queue.reclaim("g")
    assert queue.contents().groups["g"].pending.keys() == {delivery.entry.entry}
