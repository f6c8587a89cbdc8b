"""disband: a group goes when it has settled all that is in the stream, or when forced."""

import pytest

from lisa_manager.operator.groups import disband
from support.queue import Queue


def go(queue: Queue, *, force: bool = False, group: str = "g") -> tuple[str, str]:
    """Disbands a group."""
    told: tuple[str, str] = queue.connection.call(disband(queue.keys, group, force=force))
    return told


@pytest.mark.parametrize("read", [True, False])
def test_a_group_that_owes_stays(queue: Queue, *, read: bool) -> None:
    """What is pending counts, and what was not delivered."""
    queue.join("g")
    queue.send("a")
    if read:
        queue.read("g")
    assert go(queue) == ("owes", "0-0")
    assert queue.contents().groups.keys() == {"g"}
    (entry,) = queue.contents().stream
    assert go(queue, force=True) == ("done", entry)
    assert queue.contents().groups == {}


def test_another_groups_retry_is_no_debt(queue: Queue) -> None:
    """It is before this group in the stream, and not for it."""
    queue.join("g", "h")
    queue.send("a")
    queue.ack(*queue.read("g"))
    queue.nack(*queue.read("h"), delay_ms=0)
    queue.promote()
    assert go(queue)[0] == "done"
    assert queue.contents().groups.keys() == {"h"}


def test_a_group_that_is_not_there(queue: Queue) -> None:
    """Nor is its stream."""
    assert go(queue) == ("gone", "0-0")


def test_a_stream_without_entries(queue: Queue) -> None:
    """Has no last one."""
    queue.join("g")
    assert go(queue) == ("done", "0-0")
