"""Turns: topics whose deliveries wait in one worker begin one after another."""

import asyncio
from collections import Counter
from typing import Any

from lisa_common.model.delivery import Delivery, Entry
from lisa_consumer.concurrency import ConcurrencyLimit
from lisa_consumer.core import Core
from lisa_consumer.held_delivery import HeldDelivery
from lisa_consumer.queues import Queues
from support.holding import hold


async def test_busy_topics_share_what_becomes_free() -> None:
    """One slot becomes free at a time: no topic gets all of them because it came first."""
    begun: list[HeldDelivery] = []
    nowhere: Any = None
    queues = Queues(
        *(nowhere, Core("lisa", "g"), ConcurrencyLimit(5, {"first": 5, "second": 5}), asyncio.Event()),
        begin=begun.append,
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
