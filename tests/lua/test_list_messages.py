"""list_messages: messages of one state, in ranges that can be read apart."""

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from lisa_common.protocol import paging
from lisa_common.protocol.call import command
from lisa_common.protocol.paging import END, START, Listed, Point
from lisa_common.protocol.producing import State
from support.queue import EPOCH_MS, Queue, outgoing

HOUR = 3_600_000
EXAMPLES = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


def _read(queue: Queue, state: State, start: Point = START, end: Point = END, limit: int = 3) -> list[Listed]:
    found: list[Listed] = []
    rest: Point | None = start
    while rest:
        page = queue.connection.call(paging.list_messages(queue.keys, state, rest, end, limit=limit))
        found += page.messages
        rest = page.rest
    return found


def test_waiting_in_order_with_records(queue: Queue) -> None:
    """Messages come by due time, with what was sent."""
    queue.send("b", due="+2000", body=b"two", headers={"k": "v"}, priority=7)
    queue.send("a", due="+1000", body=b"\x00\xff", ttl_ms=HOUR, max_retries=3)
    a, b = _read(queue, State.WAITING)
    assert (a.id, a.group, a.at_ms, a.failure) == ("a", None, EPOCH_MS + 1000, None)
    assert a.record
    assert (a.record.body, a.record.ttl_ms, a.record.max_retries) == (b"\x00\xff", HOUR, 3)
    assert b.record
    assert (b.id, b.at_ms, b.record.headers, b.record.priority) == ("b", EPOCH_MS + 2000, {"k": "v"}, 7)


def test_retry_and_garbage_with_failures(queue: Queue) -> None:
    """Copies of groups come with their group, and with why and how often they failed."""
    queue.join("g")
    queue.send_all([outgoing("again"), outgoing("dead")])
    again, dead = queue.read("g")
    queue.nack(again, error="try later", delay_ms=500)
    queue.nack(dead, error="naïve\n", rejected=True)
    (retry,) = _read(queue, State.RETRY)
    assert (retry.group, retry.id, retry.at_ms) == ("g", "again", EPOCH_MS + 500)
    assert retry.failure
    assert (retry.failure.attempts, retry.failure.error) == (1, "try later")
    (garbage,) = _read(queue, State.GARBAGE)
    assert (garbage.group, garbage.id, garbage.at_ms) == ("g", "dead", EPOCH_MS)
    assert garbage.failure
    assert (garbage.failure.reason, garbage.failure.error) == ("rejected", "naïve\n")
    assert garbage.record
    assert garbage.record.body == b"body"


def test_only_a_group_or_a_reason(queue: Queue) -> None:
    """Other copies are left out; a page of them is empty, and says where the next one begins."""
    for group in ("g", "h"):
        queue.join(group)
    queue.send_all([outgoing(f"m{n}") for n in range(6)])
    for group in ("g", "h"):
        for n, delivery in enumerate(queue.read(group)):
            queue.nack(delivery, rejected=n % 2 == 0, delay_ms=n)

    def selected(state: State, **options: str) -> list[tuple[str | None, str]]:
        members, rest = [], START
        while rest is not None:
            call = paging.list_messages(queue.keys, state, rest, END, limit=1, **options)  # type: ignore[arg-type]
            page = queue.connection.call(call)
            members += [(listed.group, listed.id) for listed in page.messages]
            rest = page.rest
        return members

    assert selected(State.GARBAGE, group="h") == [("h", "m0"), ("h", "m2"), ("h", "m4")]
    assert selected(State.GARBAGE, reason="rejected", group="g") == [("g", "m0"), ("g", "m2"), ("g", "m4")]
    assert selected(State.GARBAGE, reason="nack") == []
    assert selected(State.RETRY, reason="nack", group="g") == [("g", "m1"), ("g", "m3"), ("g", "m5")]
    assert selected(State.GARBAGE, group="nobody") == []


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_newest_first(queue: Queue, limit: int) -> None:
    """The same messages in the other order, page by page, also those of one moment; later ones are not met."""
    for id in ("b", "a", "c", "e", "d"):
        queue.send(id, due="+1000")
        queue.send(f"later-{id}", due=f"+{2000 + ord(id)}")
    forward = [listed.id for listed in _read(queue, State.WAITING, limit=limit)]
    found, rest = list[str](), END
    while rest is not None:
        page = queue.connection.call(
            paging.list_messages(queue.keys, State.WAITING, rest, START, limit=limit, newest_first=True)
        )
        found += [listed.id for listed in page.messages]
        rest = page.rest
        queue.send(f"newer-{len(found)}", due="+9000")
    assert found == forward[::-1]
    middle = Point(EPOCH_MS + 1000, b"c")
    back = paging.list_messages(queue.keys, State.WAITING, END, middle, newest_first=True, limit=100)
    assert [each.id for each in queue.connection.call(back).messages][-3:] == ["e", "d", "c"]
    back = paging.list_messages(queue.keys, State.WAITING, middle, START, newest_first=True, limit=100)
    assert [each.id for each in queue.connection.call(back).messages] == ["b", "a"]


@pytest.mark.parametrize("headers", [None, {}, {"k": "v" * 300}])
@pytest.mark.parametrize(
    "limits", [{}, {"ttl_ms": HOUR}, {"max_retries": 3, "priority": 7}, {"ttl_ms": 9, "priority": 1}]
)
def test_records_without_bodies(queue: Queue, limits: dict[str, int], headers: dict[str, str] | None) -> None:
    """All else of the record is there."""
    queue.send("a", due="+1000", body=b"x" * 1000, headers=headers, **limits)
    whole = queue.connection.call(paging.list_messages(queue.keys, State.WAITING, START, END))
    cut = queue.connection.call(paging.list_messages(queue.keys, State.WAITING, START, END, bodies=False))
    assert whole.messages[0].record
    assert cut.messages[0].record == whole.messages[0].record._replace(body=b"")


def test_unreadable_records_without_bodies(queue: Queue) -> None:
    """Their errors are those of whole records."""
    for n, data in enumerate(
        (b"", b"\1", b"\7" * 40, b"\1" + b"\0" * 12 + b"\x08\0", b"\0", b"\1" + b"\0" * 12 + b"\x0f")
    ):
        queue.connection.call(command("HSET", queue.keys.of("messages"), f"m{n}", data))
        queue.connection.call(command("ZADD", queue.keys.of("waiting"), n, f"m{n}"))
    whole = queue.connection.call(paging.list_messages(queue.keys, State.WAITING, START, END))
    assert queue.connection.call(paging.list_messages(queue.keys, State.WAITING, START, END, bodies=False)) == whole


def test_dead_letter_without_record_or_failure(queue: Queue) -> None:
    """What is damaged is listed all the same."""
    queue.connection.call(command("ZADD", queue.keys.of("garbage"), 5, "g/lost", 6, "g/strange"))
    queue.connection.call(command("HSET", queue.keys.of("messages"), "strange", b"\x07rubbish"))
    lost, strange = _read(queue, State.GARBAGE)
    assert (lost.id, lost.record, lost.failure, lost.unreadable) == ("lost", None, None, "")
    assert strange.record is None
    assert "version 7" in strange.unreadable


def test_large_records_close_a_page(queue: Queue) -> None:
    """A page ends before the record that it has no room for, and the next begins with it. The first always fits."""
    queue.send_all([outgoing(id, due="+1000", body=b"x" * 1000) for id in "abcde"])
    page = queue.connection.call(paging.list_messages(queue.keys, State.WAITING, START, END, max_bytes=2500))
    assert [message.id for message in page.messages] == ["a", "b"]
    assert page.rest
    assert [message.id for message in _read(queue, State.WAITING, page.rest)] == ["c", "d", "e"]
    alone = queue.connection.call(paging.list_messages(queue.keys, State.WAITING, START, END, max_bytes=10))
    assert [message.id for message in alone.messages] == ["a"]


@pytest.mark.parametrize("gone", ["b", "c"])
def test_what_moves_between_pages_hides_nothing(queue: Queue, gone: str) -> None:
    """The page begins at the same place when the message there, or one before it, has gone, or one has come."""
    queue.send_all([outgoing(id, due="+1000") for id in "abcde"])
    page = queue.connection.call(paging.list_messages(queue.keys, State.WAITING, START, END, limit=2))
    queue.cancel(gone)
    queue.send("0", due="+1000")
    assert page.rest
    rest = [message.id for message in _read(queue, State.WAITING, page.rest)]
    assert rest == [id for id in "cde" if id != gone]


_ids = st.text(st.characters(categories=["L", "N", "S"]), min_size=1, max_size=4)


@EXAMPLES
@given(
    messages=st.dictionaries(_ids, st.tuples(st.integers(1, 3), st.sampled_from([0, 1, 255])), max_size=30),
    size=st.integers(1, 12),
    bounds=st.tuples(st.integers(0, 4), st.integers(0, 4)),
)
def test_ranges_cover_everything_once(
    queue: Queue, *, messages: dict[str, tuple[int, int]], size: int, bounds: tuple[int, int]
) -> None:
    """However many share a millisecond, the ranges together hold each message between the bounds exactly once."""
    queue.connection.call(command("DEL", *queue.keys.all()))
    queue.send_all([outgoing(id, due=f"+{due}", priority=priority) for id, (due, priority) in messages.items()])
    low, high = (Point(EPOCH_MS + bound) for bound in sorted(bounds))
    ranges = queue.connection.run(paging.split(queue.keys, State.WAITING, low, high, size))
    found = [message.id for start, end in ranges for message in _read(queue, State.WAITING, start, end)]
    scores = {id: EPOCH_MS + due - priority / 256 for id, (due, priority) in messages.items()}
    inside = [id for id, score in scores.items() if low.score <= score < high.score]
    assert found == sorted(inside, key=lambda id: (scores[id], id.encode()))
    assert len(ranges) <= max(1, -(-len(inside) // size) + 1)
