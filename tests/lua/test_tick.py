"""The scripts of schedules: a tick is one message, a change takes back what is ahead, and schedules can move."""

from typing import Any

import pytest

from lisa_common.errors import Resharded
from lisa_common.model.keys import ShardKeys
from lisa_common.model.policy import Policy
from lisa_common.model.record import unpack_record
from lisa_common.model.schedule import Definition, Mark, Schedule, tick_id
from lisa_common.model.sharding import Layout
from lisa_common.model.ticks import Tick, plan
from lisa_common.protocol.call import command
from lisa_common.protocol.producing import close_shard
from lisa_common.protocol.schedules import (
    Ticked,
    Written,
    adopt,
    get_definition,
    get_mark,
    leave,
    send_ticks,
    write_schedule,
)
from support.queue import EPOCH_MS, Queue

MINUTE = 60_000


def schedule(**fields: Any) -> Schedule:
    """A schedule that ticks every minute."""
    return Schedule.of({"name": "beat", "topic": "orders", "every_ms": MINUTE, "body": b"x"} | fields)


def stored(queue: Queue) -> bytes | None:
    """The stored definition."""
    text: bytes | None = queue.connection.call(get_definition(queue.keys, "beat"))
    return text


def defined(queue: Queue) -> Definition:
    """The definition in force."""
    return Definition.load("orders", "beat", stored(queue) or b"")


def write(queue: Queue, after: Schedule | None, **options: Any) -> Written:
    """Changes the schedule, as a caller that knows the present one."""
    options = {"before": defined(queue) if stored(queue) else None, "first": True} | options
    call = write_schedule(queue.keys, "beat", stored(queue), after=after, now_ms=queue.now_ms, **options)
    written: Written = queue.connection.call(call)
    return written


def put(queue: Queue, **fields: Any) -> Mark:
    """Sets the schedule, and returns its mark."""
    mark = write(queue, schedule(**fields)).mark
    assert mark is not None
    return mark


def tick(queue: Queue, mark: Mark, *, ticks: list[Tick] | None = None, **fields: Any) -> Ticked:
    """Sends what is to be sent now, as a manager that knows this mark."""
    own = schedule(**fields)
    if ticks is None:
        ticks = plan(own, mark.last_ms, queue.now_ms)
    definition = Definition(own, mark.version, 0)
    call = send_ticks(queue.keys, definition, mark=mark, ticks=ticks, policy=Policy(), now_ms=queue.now_ms)
    ticked: Ticked = queue.connection.call(call)
    return ticked


def first_after(ms: int) -> int:
    """The first tick after a time."""
    return (ms // MINUTE + 1) * MINUTE


def ids(queue: Queue) -> list[str]:
    """The messages that wait."""
    return sorted(queue.contents().waiting)


def test_a_full_topic_takes_no_tick_until_there_is_room(queue: Queue) -> None:
    """And loses none: the mark stays."""
    queue.connection.call(command("HSET", queue.keys.of("door"), "limits", '{"messages": 1}'))
    mark = put(queue)
    queue.send("other", due=EPOCH_MS + MINUTE)
    ticked = tick(queue, mark)
    assert (ticked.sent, ticked.mark) == (0, mark)
    queue.connection.call(command("HSET", queue.keys.of("door"), "limits", '{"messages": 2}'))
    assert tick(queue, mark).sent == 1


def test_one_tick_is_sent_ahead(queue: Queue) -> None:
    """It is due at its time, and says what it is; the next follows once it is due."""
    mark = put(queue)
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
    mark = put(queue)
    assert [tick(queue, mark).sent for _ in range(5)] == [1, 0, 0, 0, 0]
    queue.advance(10 * MINUTE)
    assert tick(queue, mark).sent == 0, "the mark has moved on"
    assert len(ids(queue)) == 1


def test_an_older_version_sends_nothing(queue: Queue) -> None:
    """From the change on, whatever it still knows; and versions never repeat, also after a deletion."""
    versions = [(mark := put(queue)).version]
    versions.append(put(queue, body=b"other").version)
    assert tick(queue, mark).sent == 0
    write(queue, None)
    assert tick(queue, mark).sent == 0
    queue.advance(-1_000)
    versions.append(put(queue).version)
    assert versions == sorted(set(versions))
    assert ids(queue) == []


def test_a_change_takes_back_what_is_ahead(queue: Queue) -> None:
    """With a new rhythm, ticks begin with the change; with the same one, the mark goes back by one tick."""
    assert tick(queue, put(queue, ttl_ms=5), ttl_ms=5).sent == 1
    mark = put(queue, body=b"other")
    assert (mark.last_ms, mark.sent, queue.contents().left) == (EPOCH_MS, 0, [])
    assert tick(queue, mark).sent == 1
    assert len(ids(queue)) == 1
    queue.advance(500)
    assert put(queue, every_ms=2 * MINUTE).last_ms == EPOCH_MS + 500
    assert tick(queue, defined_mark(queue), every_ms=2 * MINUTE).sent == 1
    write(queue, None)
    assert (ids(queue), stored(queue)) == ([], None)


def defined_mark(queue: Queue) -> Mark:
    """The mark, which exists."""
    mark: Mark | None = queue.connection.call(get_mark(queue.keys, "beat"))
    assert mark is not None
    return mark


def test_only_who_knows_the_schedule_changes_it(queue: Queue) -> None:
    """Not where it was changed by others; with the mark, not before what is due by the former definition is sent."""
    mark = put(queue)
    assert not write(queue, schedule(body=b"other"), before=None, mark=mark, following_ms=queue.now_ms).done
    call = write_schedule(queue.keys, "beat", None, before=None, after=None, first=True, now_ms=queue.now_ms)
    assert not queue.connection.call(call).done
    first = first_after(EPOCH_MS)
    ahead = tick(queue, mark).mark
    assert not write(queue, None, mark=mark, following_ms=first).done, "the mark has moved on"
    assert write(queue, None, mark=ahead, following_ms=first + MINUTE).done


def test_a_skip_does_not_hold_up_a_new_rhythm(queue: Queue) -> None:
    """The skipped tick is forgotten with its rhythm; a change of anything else keeps it."""
    ahead = tick(queue, put(queue)).mark
    skip(queue)
    assert ahead is not None
    assert put(queue, body=b"other").last_ms == ahead.last_ms
    for paused in (True, False):
        assert put(queue, body=b"other", paused=paused).last_ms == ahead.last_ms
    queue.advance(10)
    assert put(queue, every_ms=2 * MINUTE).last_ms == queue.now_ms


def skip(queue: Queue) -> Mark:
    """Leaves out the tick that is ahead."""
    mark = write(queue, defined(queue).schedule, skip=True).mark
    assert mark is not None
    return mark


def test_what_was_due_before_a_change_stays(queue: Queue) -> None:
    """Even where no manager has promoted it yet, as it waits at the door."""
    first = first_after(EPOCH_MS)
    tick(queue, put(queue))
    queue.now_ms = first + 10
    assert put(queue, every_ms=2 * MINUTE).last_ms == first + 10
    queue.connection.call(leave(Layout("", "orders"), queue.keys, ["beat"], first=True, now_ms=queue.now_ms))
    assert ids(queue) == [tick_id("beat", first)]


def test_missed_ticks_are_caught_up_as_chosen(queue: Queue) -> None:
    """The latest, all of a window, or none; they are due now, and marked."""
    for catchup, sent, skipped in (("latest", 2, 9), ("all", 11, 0), ("none", 1, 10)):
        queue.connection.call(command("DEL", *queue.keys.all()))
        queue.now_ms = EPOCH_MS
        mark = put(queue, catchup=catchup)
        queue.now_ms = first_after(EPOCH_MS) + 9 * MINUTE + MINUTE // 2 + 1_000
        ticked = tick(queue, mark, catchup=catchup)
        assert (catchup, ticked.sent, ticked.skipped) == (catchup, sent, skipped)
        records = {id: unpack_record(text) for id, text in queue.contents().records.items()}
        late = {id for id, record in records.items() if record.headers["lisa-caught-up"] == "true"}
        assert len(late) == sent - 1
        assert {records[id].due_ms for id in late} <= {queue.now_ms}


def test_a_tick_is_left_out_while_the_one_before_is_not_done(queue: Queue) -> None:
    """In any state but garbage; the mark moves on, and the next tick finds it done."""
    queue.join("g")
    mark = put(queue)
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
    mark = tick(queue, put(queue)).mark
    assert mark is not None
    skipped = skip(queue)
    assert (skipped.last_ms, skipped.skipped, ids(queue)) == (mark.last_ms, 1, [])
    again = skip(queue)
    assert (again.last_ms, again.skipped) == (skipped.last_ms, 1), "called again, it skips no more"
    assert tick(queue, skipped).mark == again, "a manager with the former version sends nothing"
    skipped = again
    assert tick(queue, skipped, ticks=[Tick(mark.last_ms + MINUTE, mark.last_ms + MINUTE)]).sent == 0
    queue.now_ms = mark.last_ms
    left_out = Tick(mark.last_ms + MINUTE, mark.last_ms + MINUTE, send=False)
    assert tick(queue, skipped, ticks=[left_out], overlap="skip").skipped == 1


def test_a_tick_left_out_ahead_leaves_the_message_before_it(queue: Queue) -> None:
    """A move to other shards and a new rhythm take back nothing; the message still counts for overlap."""
    own = {"overlap": "skip"}
    first = first_after(EPOCH_MS)
    mark = put(queue, **own)
    queue.now_ms = first
    mark = sent_mark(tick(queue, mark, **own))
    left_out = Tick(first + MINUTE, first + MINUTE, send=False)
    mark = sent_mark(tick(queue, mark, ticks=[left_out], **own))
    assert not mark.is_ahead(queue.now_ms)
    queue.now_ms = first + 2 * MINUTE
    assert tick(queue, mark, **own).skipped == 1
    queue.now_ms = first + MINUTE - 1
    assert put(queue, every_ms=2 * MINUTE, **own).last_ms == queue.now_ms
    queue.connection.call(leave(Layout("", "orders"), queue.keys, ["beat"], first=True, now_ms=queue.now_ms))
    assert ids(queue) == [tick_id("beat", first)]


def sent_mark(ticked: Ticked) -> Mark:
    """The mark after ticks."""
    assert ticked.mark is not None
    return ticked.mark


def test_schedules_move_to_other_shards(queue: Queue) -> None:
    """Once, however often it is tried: the tick ahead is taken back here, and sent again there."""
    new = ShardKeys(queue.keys.prefix, "orders", "0.1")
    mark = tick(queue, put(queue)).mark
    assert mark is not None
    queue.connection.call(close_shard(Layout("", "orders"), queue.keys))
    assert tick(queue, mark, ticks=[]).mark == mark, "they go on until they move"
    call = leave(Layout("", "orders"), queue.keys, ["beat"], first=True, now_ms=queue.now_ms)
    version, moved = queue.connection.call(call)
    assert queue.connection.call(call) == (version, moved)
    [(_, definition, text)] = moved
    assert (version, Mark.load(text).last_ms, ids(queue)) == (mark.version, EPOCH_MS, [])  # type: ignore[union-attr]
    assert tick(queue, mark).mark is None
    with pytest.raises(Resharded):
        write(queue, schedule(body=b"late"))
    assert not queue.connection.call(adopt(new, version=version, count=1)), "the schedules are missing"
    assert queue.connection.call(adopt(new, moved))
    with pytest.raises(Resharded):
        queue.connection.call(write_schedule(new, "beat", definition, before=None, after=None, first=False))
    assert queue.connection.call(adopt(new, version=version, count=1))
    assert not queue.connection.call(adopt(new, moved)), "it is in use"
    assert queue.connection.call(get_definition(new, "beat")) == definition
    assert queue.connection.call(write_schedule(new, "beat", definition, before=None, after=None, first=False)).done


def test_a_shard_without_schedules_is_left_as_well(queue: Queue) -> None:
    """The first one may get some at any time; of later ones, only those that had some."""
    assert queue.connection.call(leave(Layout("", "orders"), queue.keys, first=False)) is None
    assert queue.connection.call(leave(Layout("", "orders"), queue.keys, first=True)) == (0, [])
    with pytest.raises(Resharded):
        put(queue)


@pytest.mark.parametrize("text", [b"", b"x", b"1 2 3", b"1 2 3 4 5 6", b"-1 2 3 4 5 6 -", b"1" * 400])
def test_a_damaged_mark_sends_nothing_twice(queue: Queue, text: bytes) -> None:
    """All ticks up to now count as sent."""
    queue.connection.call(command("HSET", queue.keys.of("ticks"), "beat", text))
    assert queue.connection.call(get_mark(queue.keys, "beat")) is None
    queue.advance(100 * MINUTE)
    assert put(queue).last_ms == queue.now_ms
