"""The work of a script over many rows is bounded: it does a part of them, and is asked again for the rest."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import redis

from lisa_common.model.delivery import Entry
from lisa_common.model.message import Replacement
from lisa_common.protocol import consuming, managing, producing
from lisa_common.protocol.call import Call
from lisa_common.protocol.consuming import AckOutcome, Nack
from support.queue import Queue, outgoing

_LARGE = b"x" * 1024 * 1024
_MANY = 12
_IDS = [f"m{number}" for number in range(_MANY)]

Rows = Sequence[Any]


def _nack(queue: Queue, entries: Sequence[Entry]) -> Call[Any]:
    return consuming.nack(queue.keys, "g", [Nack(entry) for entry in entries], queue.policy, now_ms=queue.now_ms)


def _pass(queue: Queue, entries: Sequence[Entry]) -> Call[Any]:
    return consuming.discard(queue.keys, "g", entries, queue.policy, now_ms=queue.now_ms)


def _cancel(queue: Queue, entries: Sequence[Entry]) -> Call[Any]:
    return producing.cancel(queue.keys, [entry.id or "" for entry in entries], now_ms=queue.now_ms)


def _reschedule(queue: Queue, entries: Sequence[Entry]) -> Call[Any]:
    return producing.reschedule(queue.keys, [(entry.id or "", "+5") for entry in entries], now_ms=queue.now_ms)


def _ack_again(queue: Queue, entries: Sequence[Entry]) -> Call[Any]:
    return consuming.ack(queue.keys, "g", entries, queue.policy, now_ms=queue.now_ms)


def _reject(queue: Queue, entries: Sequence[Entry]) -> None:
    nacks = [Nack(entry, rejected=True) for entry in entries]
    queue.connection.call(consuming.nack(queue.keys, "g", nacks, queue.policy, now_ms=queue.now_ms))


def _send_large(queue: Queue, **options: Any) -> list[Entry]:
    queue.join("g")
    for id in _IDS:
        queue.send(id, body=_LARGE, **options)
    return queue.take("g")


def _done(queue: Queue, call: Call[Any]) -> int:
    """How many rows a script does of those it is given, in one call and no more."""
    reply: list[Any] = queue.connection.call(call._replace(decode=lambda reply: reply))
    return int(reply[0])


@pytest.mark.parametrize("call", [_nack, _pass, _cancel, _reschedule])
def test_large_records_are_done_in_parts(queue: Queue, call: Callable[[Queue, Sequence[Entry]], Call[Any]]) -> None:
    """A few MiB in one call, and one message at least."""
    entries = _send_large(queue, ttl_ms=10)
    queue.advance(10)
    assert 1 <= _done(queue, call(queue, entries)) <= 6


def test_one_record_is_done_however_large(queue: Queue) -> None:
    """Else nothing would ever come of it."""
    queue.join("g")
    queue.send("a", body=b"x" * 6 * 1024 * 1024)
    assert _done(queue, _nack(queue, queue.take("g"))) == 1


def test_the_shell_asks_for_the_rest(queue: Queue) -> None:
    """Whoever makes the call has the outcomes of all, in order."""
    entries = _send_large(queue)
    assert [outcome for outcome, _ in queue.connection.call(_nack(queue, entries))] == ["retry"] * _MANY
    assert len(queue.contents().retry) == _MANY
    dues = queue.connection.call(_reschedule(queue, entries))
    assert dues == [("rescheduled", queue.now_ms + 5)] * _MANY
    assert queue.connection.call(_cancel(queue, entries)) == ["cancelled"] * _MANY
    assert queue.contents().left == []


def test_dead_letters_are_replayed_and_purged_in_parts(queue: Queue) -> None:
    """Also where their group is gone, so that their records are looked at."""
    queue.connection.call(
        consuming.nack(
            queue.keys,
            "g",
            [Nack(entry, rejected=True) for entry in _send_large(queue)],
            queue.policy,
            now_ms=queue.now_ms,
        )
    )
    copies = [f"g/{id}" for id in _IDS]
    assert 1 <= _done(queue, managing.replay(queue.keys, copies, now_ms=queue.now_ms)) <= 3
    assert queue.replay(*copies).count("replayed") >= _MANY - 3
    queue.connection.call(
        consuming.nack(
            queue.keys,
            "g",
            [Nack(entry, rejected=True) for entry in queue.take("g")],
            queue.policy,
            now_ms=queue.now_ms,
        )
    )
    queue.destroy("g")
    assert 1 <= _done(queue, managing.purge(queue.keys, copies)) <= 6
    assert queue.purge(*copies) >= _MANY - 6
    assert queue.contents().left == []


def test_what_an_ack_has_not_judged_is_judged_later(queue: Queue) -> None:
    """Entries that it took from the pending list are there again meanwhile: nothing is lost if nobody asks again."""
    entries = _send_large(queue)
    queue.connection.call(_ack_again(queue, entries[:1]))
    done = _done(queue, _ack_again(queue, entries))
    assert 1 <= done <= 6
    contents = queue.contents()
    assert contents.records.keys() == {entry.id for entry in entries[done:]}
    assert contents.groups["g"].pending.keys() == {entry.entry for entry in entries[done:]}
    rest = consuming.ack(queue.keys, "g", entries[done:], queue.policy, now_ms=queue.now_ms, judge=True)
    assert queue.connection.call(rest) == [AckOutcome.ACKED] * (_MANY - done)
    assert queue.contents().left == ["finished"]


def test_an_ack_of_large_messages_is_as_any(queue: Queue) -> None:
    """Its first half is stale, the other is not, however many calls it takes."""
    entries = _send_large(queue)
    queue.connection.call(_ack_again(queue, entries[::2]))
    again = queue.connection.call(_ack_again(queue, entries))
    assert again == [AckOutcome.STALE, AckOutcome.ACKED] * (_MANY // 2)


def test_a_sweep_takes_large_messages_in_parts(queue: Queue) -> None:
    """It says that there is more."""
    for id in _IDS:
        queue.send(id, body=_LARGE, due="+1", ttl_ms=5)
    queue.advance(10)
    swept = queue.sweep()
    assert 1 <= swept.expired <= 3
    assert swept.more


def test_many_groups_make_parts_small(queue: Queue) -> None:
    """A message has a place in each group, and each takes work."""
    names = [f"g{number}" for number in range(100)]
    queue.join(*names)
    queue.send_all([outgoing(id) for id in _IDS])
    assert 1 <= _done(queue, producing.cancel(queue.keys, _IDS, now_ms=queue.now_ms)) <= 8
    assert queue.cancel(*_IDS) == ["unknown"] * 3 + ["cancelled"] * 9
    assert queue.contents().left == []


def test_replacements_of_retries_are_done_in_parts(queue: Queue, client: redis.Redis) -> None:
    """Each group has its copy; the caller sends the rest."""
    names = [f"g{number}" for number in range(100)]
    queue.join(*names)
    queue.send_all([outgoing(id) for id in _IDS])
    copies = [f"{name}/{id}" for name in names for id in _IDS]
    client.zadd(queue.keys.of("retry"), dict.fromkeys(copies, queue.now_ms + 1_000))
    left = [Replacement(*outgoing(id, due="+5")) for id in [*_IDS, "new"]]
    sizes = []
    while left:
        dues = queue.connection.call(producing.send(queue.keys, left, repeatable=False, now_ms=queue.now_ms))
        assert dues in ([-queue.now_ms - 5] * len(dues), [-queue.now_ms - 5] * (len(dues) - 1) + [queue.now_ms + 5])
        sizes.append(len(dues))
        left = left[len(dues) :]
        assert len(queue.contents().retry) == 100 * max(0, len(left) - 1)
    assert len(sizes) == 2
    assert queue.contents().waiting == dict.fromkeys([*_IDS, "new"], queue.now_ms + 5)


def test_repeated_replacements_are_done_in_parts(queue: Queue) -> None:
    """They read what is stored, to find their own."""
    _send_large(queue)
    again = [Replacement(*outgoing(id, due="~5.0 +0")) for id in _IDS]
    dues = queue.connection.call(producing.send(queue.keys, again, repeatable=False, now_ms=queue.now_ms))
    assert dues == [-queue.now_ms] * len(dues)
    assert 1 <= len(dues) <= 6


def test_finished_ids_are_forgotten_by_the_thousand(queue: Queue) -> None:
    """Five times as many as of what has records to be ended."""
    queue.join("g")
    queue.send_all([outgoing(f"m{number}") for number in range(1_000)])
    queue.ack(*queue.read("g"))
    queue.advance(queue.policy.dedup_window_ms)
    assert queue.sweep(limit=200).forgotten == 1_000


def test_a_long_stream_is_trimmed_in_parts(queue: Queue) -> None:
    """Some ten thousand entries at once; it says that there is more."""
    queue.join("g")
    for batch in range(25):
        queue.send_all([outgoing(f"{batch}-{number}") for number in range(1_000)])
    for _ in range(25):
        queue.ack(*queue.read("g", limit=1_000))
    trimmed = [queue.trim()]
    assert trimmed[0].more
    while trimmed[-1].more:
        trimmed.append(queue.trim())
    assert sum(one.entries for one in trimmed) == 25_000
    assert trimmed[-1].entries_left == 0


def test_retries_of_which_nothing_is_known_are_promoted_in_parts(queue: Queue, client: redis.Redis) -> None:
    """Their records are read for the due time; what a call has no room for stays where it is."""
    queue.connection.call(_nack(queue, _send_large(queue)))
    client.unlink(queue.keys.of("failures"))
    queue.advance(1_000)
    promoted = queue.promote()
    assert 1 <= promoted.count <= 6
    assert promoted.more
    assert len(queue.contents().retry) == _MANY - promoted.count
    while queue.promote().more:
        pass
    assert queue.contents().retry == {}
    assert len(queue.take("g")) == _MANY


def _postpone(queue: Queue) -> tuple[list[Entry], Entry]:
    """A stale ack that was put off, with acks of large messages: one of two parts, of which the second was never asked.

    Returns what was left, and the entry of the delivery that has begun since.
    """
    queue.join("g")
    queue.send("stale")
    for id in _IDS:
        queue.send(id, body=_LARGE)
    stale, *entries = queue.take("g")
    queue.connection.call(_nack(queue, [stale]))
    queue.advance(1_000)
    queue.promote()
    (newer,) = queue.take("g", "newer")
    acked = [*entries, stale]
    done = _done(queue, _ack_again(queue, acked))
    assert done < len(entries)
    return acked[done:], newer


def test_a_stale_ack_that_was_put_off_is_stale_when_asked_again(queue: Queue) -> None:
    """Promise 5: by whoever lost the reply, and so does not say that it is to be judged."""
    left, newer = _postpone(queue)
    outcomes = queue.connection.call(_ack_again(queue, left))
    assert outcomes[-1] is AckOutcome.STALE
    assert queue.contents().groups["g"].pending.keys() == {newer.entry}
    assert "stale" in queue.contents().records


def test_a_stale_ack_that_was_put_off_is_not_pending(queue: Queue) -> None:
    """A reclaim would take it for a delivery, and the newer one would have a retry beside it."""
    left, newer = _postpone(queue)
    pending = queue.contents().groups["g"].pending
    assert pending == {entry.entry: "~acks" for entry in left[:-1]} | {newer.entry: "newer"}
