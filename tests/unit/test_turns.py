"""Turns: topics whose deliveries wait in one worker start one after another; and which of them are marked ahead."""

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from lisa_common.model.delivery import Delivery, Entry
from lisa_common.model.keys import ShardKeys
from lisa_consumer.delivery.core import Core
from lisa_consumer.handling.batches import BatchSize
from lisa_consumer.handling.handler import Route
from lisa_consumer.worker.held import HeldDelivery
from lisa_consumer.worker.queue import Queue
from lisa_consumer.worker.start_marks import StartMarks
from support.holding import hold


def _held(topic: str, count: int, *, is_marked: bool = True) -> list[HeldDelivery]:
    entries = [Entry(f"{n}-0", str(n)) for n in range(count)]
    return hold([Delivery(topic, "g", str(e.id), b"", {}, 1, 0, 0, e) for e in entries], is_marked=is_marked)


def _new_marks(queue: Queue, soon: int) -> StartMarks:
    nowhere: Any = None
    windows: Any = {"orders": SimpleNamespace(soon=soon)}
    return StartMarks(nowhere, Core("lisa", "g"), queue, windows)


def test_busy_topics_share_what_becomes_free() -> None:
    """One slot becomes free at a time: no topic gets all of them because it came first."""
    queue = Queue(5, [Route("first", print, 5), Route("second", print, 5)])
    for topic in ("first", "second"):
        queue.put(_held(topic, 50))
    started = queue.take()
    assert len(started) == 5
    for at in range(40):
        queue.free(started[at].delivery.topic)
        started += queue.take()
    counts = Counter(held.delivery.topic for held in started[5:])
    assert counts == {"first": 20, "second": 20}


@pytest.mark.parametrize(
    ("soon", "waiting", "is_marked", "marked"), [(100, 30, True, 70), (20, 30, True, 0), (100, 30, False, 0)]
)
def test_what_starts_soon_is_begun_as_it_is_read(soon: int, waiting: int, marked: int, *, is_marked: bool) -> None:
    """Behind others that start sooner, and not before one that still needs a mark: a mark covers all before it."""
    queue = Queue(1, [Route("orders", print, 1)])
    queue.put(_held("orders", waiting + 1, is_marked=is_marked))
    queue.take()
    keys, batch = ShardKeys("lisa", "orders"), [Entry(f"{n}-0", str(n)) for n in range(100, 200)]
    expected = {keys: batch[marked - 1].entry} if marked else {}
    assert _new_marks(queue, soon).choose([(keys, batch)]) == expected


def test_marks_come_before_they_are_needed() -> None:
    """Once half of what is marked has started, the next are marked, so that no handler waits for the server."""
    queue = Queue(1, [Route("orders", print, 1)])
    marks = _new_marks(queue, 4)
    held = _held("orders", 10)
    for each in held[5:]:
        each.is_marked = False
    queue.put(held)
    expected = []
    for _ in range(4):
        assert marks.begin(queue.take())
        expected.append(bool(marks._expected))
        marks._expected.clear()
        queue.free("orders")
    assert expected == [False, False, True, True]


async def test_a_batch_that_is_due_waits_for_what_runs_alone() -> None:
    """Without looking again and again meanwhile, nor in a drain to other topics."""
    batches = Route("batches", print, 1, batch=BatchSize(9, 0.0))
    queue = Queue(5, [Route("orders", print, 5), batches])
    entry = Entry("1-0", "1", 0, 2, "g", 0, alone=True)
    queue.put(hold([Delivery("orders", "g", "1", b"", {}, 2, 0, 0, entry)]))
    [alone] = queue.take()
    queue.put(_held("batches", 3))
    assert queue.take() == []
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await queue.wait()
    queue.free("orders")
    queue.leave([alone])
    queue.drain(["orders"])
    assert queue.take() == []
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await queue.wait()
    queue.drain(["batches"])
    assert len(queue.take()[0].call) == 3
