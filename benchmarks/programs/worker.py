"""A worker whose handler only notes when it was called, with one message or with a batch."""

import asyncio
import os
import time

from benchmarks.stamps import Recorder
from lisa_consumer import Delivery, Worker

_BATCH = 100

record = Recorder()
worker = Worker(group="billing")


async def note(delivery: Delivery) -> None:
    """Notes it."""
    record(delivery.due_ms / 1000)


async def wait(delivery: Delivery) -> None:
    """Notes it, and waits for 1 ms, as for a reply."""
    record(delivery.due_ms / 1000)
    await asyncio.sleep(0.001)


async def burn(delivery: Delivery) -> None:
    """Notes it, and keeps a core busy for 1 ms."""
    record(delivery.due_ms / 1000)
    end = time.perf_counter() + 0.001
    while time.perf_counter() < end:
        pass


async def note_batch(deliveries: list[Delivery]) -> None:
    """Notes all of a batch."""
    for delivery in deliveries:
        record(delivery.due_ms / 1000)


handlers = {"record": note, "wait": wait, "burn": burn}
topics, handler = os.environ["BENCH_TOPICS"].split(","), os.environ["BENCH_HANDLER"]
if handler == "batches":
    worker.on(*topics, batch=_BATCH)(note_batch)
else:
    worker.on(*topics)(handlers[handler])
