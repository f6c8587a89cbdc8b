"""join: groups are made."""

import pytest
import redis

from lisa_common.errors import TooManyGroups
from lisa_common.protocol import consuming
from support.queue import EPOCH_MS, Queue


def test_made_once(queue: Queue) -> None:
    """The first join makes stream and group; later ones find them."""
    assert queue.join("g", "g") == [True, False]
    contents = queue.contents()
    assert contents.groups.keys() == {"g"}
    assert contents.left == []


def test_the_first_group_gets_what_was_there(queue: Queue) -> None:
    """Messages sent before any group existed are the first group's, and only its."""
    queue.send("early")
    queue.join("g", "h")
    queue.send("late")
    assert [d.id for d in queue.read("g")] == ["early", "late"]
    assert [d.id for d in queue.read("h")] == ["late"]


def test_a_message_that_waits_is_for_all(queue: Queue) -> None:
    """What becomes ready after a group was made is for it, whenever it was sent."""
    queue.send("a", due="+5")
    queue.join("g", "h")
    queue.advance(5)
    queue.promote()
    assert [d.id for d in queue.read("g")] == [d.id for d in queue.read("h")] == ["a"]


def test_a_later_group_leaves_the_first_alone(queue: Queue) -> None:
    """Messages of the time of one group end with that group's ack, though there are two now."""
    queue.join("g")
    queue.send("a")
    (delivery,) = queue.read("g")
    queue.join("h")
    queue.nack(delivery, delay_ms=0)
    queue.promote()
    assert queue.read("h") == []
    assert queue.ack(*queue.read("g")) == ["acked"]
    assert queue.contents().left == ["finished"]


def test_an_entry_of_an_earlier_message_is_passed_over(queue: Queue, client: redis.Redis) -> None:
    """A first group begins with all that is there, and reads a message once that was sent again for the same time."""
    queue.join("g")
    queue.send("a", due=str(EPOCH_MS))
    queue.nack(*queue.read("g"), rejected=True)
    queue.purge("g/a")
    client.xgroup_destroy(queue.keys.of("ready"), "g")
    queue.catch_up()
    queue.send("a", due=str(EPOCH_MS), body=b"new")
    queue.join("first")
    assert [delivery.body for delivery in queue.read("first")] == [b"new"]


def test_no_more_groups_than_there_may_be(queue: Queue) -> None:
    """One that is there already may be joined all the same, whatever the limit is by now."""
    queue.join("a", "b")
    with pytest.raises(TooManyGroups, match="the topic has 2 groups; max_groups of its policy is 2"):
        queue.connection.call(consuming.join(queue.keys, "c", most=2))
    assert queue.contents().groups.keys() == {"a", "b"}
    assert queue.connection.call(consuming.join(queue.keys, "b", most=1)) is False
    assert queue.connection.call(consuming.join(queue.keys, "c", most=3)) is True
