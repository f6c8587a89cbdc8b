"""fetch: records in order, up to a limit of bytes."""

import pytest

from lisa_common.protocol.call import command
from lisa_common.protocol.fetching import fetch_within
from support.queue import Queue, outgoing


@pytest.fixture
def size(queue: Queue) -> int:
    """Messages a, b and c are there. Returns how many bytes the record of each has."""
    queue.send_all([outgoing(id, body=b"x" * 100) for id in "abc"])
    return len(queue.contents().records["a"])


def _fetch(queue: Queue, most_bytes: int, least: int) -> list[int | None]:
    call = fetch_within(queue.keys, ["a", "gone", "b", "c"], most_bytes=most_bytes, least=least)
    return [record and len(record) for record in queue.connection.call(call)]


def test_ends_before_the_limit(queue: Queue, size: int) -> None:
    """What is beyond the limit is left out, with all that follows; what is not there takes no room."""
    assert _fetch(queue, 4 * size, 0) == [size, None, size, size]
    assert _fetch(queue, 3 * size, 0) == [size, None, size, size]
    assert _fetch(queue, 3 * size - 1, 0) == [size, None, size]
    assert _fetch(queue, size, 0) == [size, None]
    assert _fetch(queue, size - 1, 0) == []


def test_brings_the_least_whatever_its_size(queue: Queue, size: int) -> None:
    """So that a message which is larger than the limit can be fetched."""
    assert _fetch(queue, 0, 1) == [size]
    assert _fetch(queue, 0, 3) == [size, None, size]


def test_another_type_in_the_key(queue: Queue) -> None:
    """What is wrong with the topic is told, and not raised."""
    queue.connection.call(command("SET", queue.keys.of("messages"), "no hash"))
    assert "WRONGTYPE" in str(queue.connection.call(fetch_within(queue.keys, ["a"], most_bytes=1, least=1)))
