"""Turns: topics whose deliveries wait in one worker begin one after another."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from lisa_common.model.delivery import Delivery, Entry
from lisa_consumer.worker.concurrency import ConcurrencyLimit
from lisa_consumer.delivery.core import Core
from lisa_consumer.worker.held import HeldDelivery
from lisa_consumer.worker.queue import Queues
from support.holding import hold


async def test_busy_topics_share_what_becomes_free() -> None:
    """One slot becomes free at a time: no topic gets all of them because it came first."""
    begun: list[HeldDelivery] = []
    nowhere: Any = None
    queues = Queues(
        *(nowhere, Core("lisa", "g"), ConcurrencyLimit(5, {"first": 5, "second": 5}), asyncio.Event()),
        begin=begun.extend,
        soon=lambda _: 0,
        may_begin=lambda _: True,
    )
    for topic in ("first", "second"):
        entries = [Entry(f"{n}-0", str(n)) for n in range(50)]
        queues.add(hold([Delivery(topic, "g", str(entry.id), b"", {}, 1, 0, 0, entry) for entry in entries]))
    for at in range(40):
        queues.end([begun[at]])
    counts = Counter(held.delivery.topic for held in begun[5:])
    assert counts == {"first": 20, "second": 20}


@pytest.mark.parametrize(
    ("soon", "waiting", "is_begun", "begun"), [(100, 30, True, 70), (20, 30, True, 0), (100, 30, False, 0)]
)
async def test_what_begins_soon_is_begun_as_it_is_read(soon: int, waiting: int, begun: int, *, is_begun: bool) -> None:
    """Behind others that begin sooner, and not before one that still needs a mark: a mark covers all before it."""
    nowhere: Any = None
    core = Core("lisa", "g")
    queues = Queues(
        *(nowhere, core, ConcurrencyLimit(1, {"orders": 1}), asyncio.Event()),
        begin=lambda _: None,
        soon=lambda _: soon,
        may_begin=lambda _: True,
    )
    entries = [Entry(f"{n}-0", str(n)) for n in range(waiting + 1)]
    held = hold([Delivery("orders", "g", str(e.id), b"", {}, 1, 0, 0, e) for e in entries], is_begun=is_begun)
    queues.add(held)
    batch = [Entry(f"{n}-0", str(n)) for n in range(100, 200)]
    assert core._hooks
    assert core._hooks.count_beginning(["orders"], [batch]) == [begun]


async def test_marks_come_before_they_are_needed() -> None:
    """Once half of what is marked has begun, the next are marked, so that no handler waits for the server."""
    asked: list[str] = []
    nowhere: Any = None
    queues = Queues(
        *(nowhere, Core("lisa", "g"), ConcurrencyLimit(1, {"orders": 1}), asyncio.Event()),
        begin=lambda _: None,
        soon=lambda _: 4,
        may_begin=lambda _: True,
    )
    queues._marker.expect = asked.append  # type: ignore[method-assign]
    entries = [Entry(f"{n}-0", str(n)) for n in range(10)]
    deliveries = [Delivery("orders", "g", str(e.id), b"", {}, 1, 0, 0, e) for e in entries]
    held = hold(deliveries[:5]) + hold(deliveries[5:], is_begun=False)
    queues.add(held)
    counts = []
    for each in held[:4]:
        counts.append(len(asked))
        queues.end([each])
    assert (counts, asked) == ([0, 0, 1, 2], ["orders"] * 2)
