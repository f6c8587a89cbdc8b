"""tick, fence, withdraw, unmark: a tick of a schedule is one message, and a change takes back what is ahead."""

from typing import Any

import pytest

from lisa_common.errors import Resharded
from lisa_common.model.policy import Policy
from lisa_common.model.record import unpack_record
from lisa_common.model.schedule import Definition, Mark, Schedule, tick_id
from lisa_common.model.ticks import Tick, plan
from lisa_common.protocol.call import command
from lisa_common.protocol.producing import close_shard
from lisa_common.protocol.schedules import Ticked, get_mark, send_ticks, set_fence, unmark, withdraw
from support.queue import EPOCH_MS, Queue

MINUTE = 60_000
V = EPOCH_MS


def schedule(**fields: Any) -> Schedule:
    """A schedule that ticks every minute."""
    return Schedule.of({"name": "beat", "topic": "orders", "every_ms": MINUTE, "body": b"x"} | fields)


def fence(queue: Queue, version: int = V, *, since: int = EPOCH_MS, base: bytes = b"", read: int | None = None) -> Any:
    """Puts a version in force."""
    read_ms = queue.now_ms if read is None else read
    call = set_fence(
        queue.keys, "beat", version=version, since_ms=since, base=base, read_ms=read_ms, now_ms=queue.now_ms
    )
    return queue.connection.call(call).mark


def tick(queue: Queue, mark: Mark, *, version: int = V, ticks: list[Tick] | None = None, **fields: Any) -> Ticked:
    """Sends what is to be sent now, as a manager that knows this mark."""
    own = schedule(**fields)
    if ticks is None:
        ticks = plan(own, mark.last_ms, queue.now_ms)
    definition = Definition("beat", own, version)
    call = send_ticks(*(queue.keys, definition, own), mark=mark, ticks=ticks, policy=Policy(), now_ms=queue.now_ms)
    return queue.connection.call(call)


def first_after(ms: int) -> int:
    """The first tick after a time."""
    return (ms // MINUTE + 1) * MINUTE


def ids(queue: Queue) -> list[str]:
    """The messages that wait."""
    return sorted(queue.contents().waiting)


def test_a_full_topic_takes_no_tick_until_there_is_room(queue: Queue) -> None:
    """And loses none: the mark stays."""
    queue.connection.call(command("HSET", queue.keys.of("door"), "limits", '{"messages": 1}'))
    mark = fence(queue)
    queue.send("other", due=EPOCH_MS + MINUTE)
    ticked = tick(queue, mark)
    assert (ticked.sent, ticked.mark) == (0, mark)
    queue.connection.call(command("HSET", queue.keys.of("door"), "limits", '{"messages": 2}'))
    assert tick(queue, mark).sent == 1


def test_one_tick_is_sent_ahead(queue: Queue) -> None:
    """It is due at its time, and says what it is; the next follows once it is due."""
    mark = fence(queue)
    ticked = tick(queue, mark)
    first = first_after(EPOCH_MS)
    assert (ticked.sent, ticked.mark.last_ms if ticked.mark else None) == (1, first)
    contents = queue.contents()
    assert contents.waiting == {tick_id("beat", first): first}
    record = unpack_record(contents.records[tick_id("beat", first)])
    assert record.headers == {
        "lisa-schedule": "beat",
        "lisa-tick": "2001-09-09T01:47:00Z",
        "lisa-caught-up": "false",
    }
    assert ticked.mark is not None
    assert tick(queue, ticked.mark, ticks=[Tick(first + MINUTE, first + MINUTE)]).sent == 0, "only one may be ahead"
    queue.now_ms = first
    assert tick(queue, ticked.mark).sent == 1
    assert len(ids(queue)) == 2


def test_a_tick_is_one_message_whoever_sends_it(queue: Queue) -> None:
    """Managers with the same mark, or with an older one, send nothing more."""
    mark = fence(queue)
    assert [tick(queue, mark).sent for _ in range(5)] == [1, 0, 0, 0, 0]
    queue.advance(10 * MINUTE)
    assert tick(queue, mark).sent == 0, "the mark has moved on"
    assert len(ids(queue)) == 1


def test_an_older_version_sends_nothing(queue: Queue) -> None:
    """From the fence on, whatever it still knows."""
    mark = fence(queue)
    fence(queue, V + 1)
    assert tick(queue, mark).sent == 0
    assert fence(queue).version == V + 1, "a fence never goes back"
    assert ids(queue) == []


def test_a_change_takes_back_what_is_ahead(queue: Queue) -> None:
    """With a new rhythm, ticks begin with the change; with the same one, the mark goes back by one tick."""
    ahead = tick(queue, fence(queue), ttl_ms=5).mark
    assert ahead is not None
    mark = fence(queue, V + 1)
    assert (mark.last_ms, mark.sent, queue.contents().left) == (EPOCH_MS, 0, [])
    again = tick(queue, mark, version=V + 1)
    assert again.sent == 1
    assert len(ids(queue)) == 1
    queue.advance(500)
    assert fence(queue, V + 500, since=EPOCH_MS + 500).last_ms == EPOCH_MS + 500


def test_a_skip_does_not_hold_up_a_new_rhythm(queue: Queue) -> None:
    """The skipped tick is forgotten with its rhythm; a change of anything else keeps it."""
    ahead = tick(queue, fence(queue)).mark
    queue.connection.call(withdraw(queue.keys, "beat", skip=True))
    assert ahead is not None
    assert fence(queue, V + 1).last_ms == ahead.last_ms
    queue.advance(10)
    assert fence(queue, V + 10, since=queue.now_ms).last_ms == queue.now_ms


def test_what_was_due_before_a_change_stays(queue: Queue) -> None:
    """Even where no manager has promoted it yet."""
    first = first_after(EPOCH_MS)
    tick(queue, fence(queue))
    queue.now_ms = first + 10
    mark = fence(queue, first + 5, since=first + 5)
    assert mark.last_ms == first + 5
    assert ids(queue) == [tick_id("beat", first)]


def test_missed_ticks_are_caught_up_as_chosen(queue: Queue) -> None:
    """The latest, all of a window, or none; they are due now, and marked."""
    for catchup, sent, skipped in (("latest", 2, 9), ("all", 11, 0), ("none", 1, 10)):
        queue.connection.call(command("DEL", *queue.keys.all()))
        queue.now_ms = EPOCH_MS
        mark = fence(queue)
        queue.now_ms = first_after(EPOCH_MS) + 9 * MINUTE + MINUTE // 2 + 1_000
        ticked = tick(queue, mark, catchup=catchup)
        assert (catchup, ticked.sent, ticked.skipped) == (catchup, sent, skipped)
        records = {id: unpack_record(text) for id, text in queue.contents().records.items()}
        late = {id for id, record in records.items() if record.headers["lisa-caught-up"] == "true"}
        assert len(late) == sent - 1
        assert {records[id].due_ms for id in late} <= {queue.now_ms}
    windowed = tick(queue, fence(queue, V + 10**9, since=EPOCH_MS), version=V + 10**9)
    assert windowed.mark is not None


def test_a_tick_is_left_out_while_the_one_before_is_not_done(queue: Queue) -> None:
    """In any state but garbage; the mark moves on, and the next tick finds it done."""
    queue.join("g")
    mark = fence(queue)
    sent = []
    for step in range(6):
        queue.now_ms = first_after(queue.now_ms)
        ticked = tick(queue, mark, overlap="skip")
        assert ticked.mark is not None
        mark = ticked.mark
        sent.append(ticked.sent)
        queue.promote()
        if step == 1:
            (delivery,) = queue.read("g")
        elif step == 3:
            queue.ack(delivery)
        elif step == 4:
            (delivery,) = queue.read("g")
            queue.nack(delivery, rejected=True)
    # Waiting or ready, delivered, delivered; then acked; then garbage.
    assert sent == [1, 0, 0, 0, 1, 1]
    assert (mark.sent, mark.skipped) == (3, 3)


def test_a_skip_is_a_tick_without_a_message(queue: Queue) -> None:
    """The operator's skip takes back what is ahead, or moves the mark over the next tick."""
    mark = tick(queue, fence(queue)).mark
    assert mark is not None
    skipped, done = queue.connection.call(withdraw(queue.keys, "beat", skip=True))
    assert (done, skipped.last_ms, skipped.skipped, ids(queue)) == (True, mark.last_ms, 1, [])
    assert queue.connection.call(withdraw(queue.keys, "beat", skip=True))[1] is False
    assert tick(queue, skipped, ticks=[Tick(mark.last_ms + MINUTE, mark.last_ms + MINUTE)]).sent == 0
    queue.now_ms = mark.last_ms
    left_out = Tick(mark.last_ms + MINUTE, mark.last_ms + MINUTE, send=False)
    assert tick(queue, skipped, ticks=[left_out], overlap="skip").skipped == 1


def test_a_closed_shard_takes_no_ticks(queue: Queue) -> None:
    """The mark moves to the new shard: the tick ahead is taken back here, and sent again there."""
    mark = tick(queue, fence(queue)).mark
    assert mark is not None
    queue.connection.call(close_shard(queue.keys, []))
    with pytest.raises(Resharded):
        tick(queue, mark)
    with pytest.raises(Resharded):
        fence(queue, V + 1)
    base, _ = queue.connection.call(withdraw(queue.keys, "beat"))
    assert (base.last_ms, ids(queue)) == (EPOCH_MS, [])
    queue.connection.call(command("DEL", queue.keys.of("closed"), queue.keys.of("ticks")))
    assert fence(queue, base=base.text).last_ms == EPOCH_MS
    assert queue.connection.call(unmark(queue.keys, "beat", b"another")) is False
    assert queue.connection.call(unmark(queue.keys, "beat", fence(queue).text)) is True


def test_a_stale_definition_makes_no_mark(queue: Queue) -> None:
    """A manager that was frozen after it read a schedule, which was deleted since, does not bring it back."""
    assert fence(queue, read=queue.now_ms - 10_001) is None
    assert fence(queue, read=queue.now_ms - 10_000) is not None


@pytest.mark.parametrize("text", [b"", b"x", b"1 2 3", b"1 2 3 4 5 6", b"-1 2 3 4 5 6 -", b"1" * 400])
def test_a_damaged_mark_sends_nothing_twice(queue: Queue, text: bytes) -> None:
    """All ticks up to now count as sent."""
    queue.connection.call(command("HSET", queue.keys.of("ticks"), "beat", text))
    assert queue.connection.call(get_mark(queue.keys, "beat")) is None
    queue.advance(100 * MINUTE)
    mark = fence(queue, V + 1)
    assert mark.last_ms == queue.now_ms
