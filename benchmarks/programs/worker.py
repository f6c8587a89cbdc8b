"""A worker whose handler does nothing, notes when it was called, waits or computes."""

import asyncio
import os
import time

from benchmarks.stamps import Recorder
from lisa_consumer import Delivery, Worker

_BATCH = 100

record = Recorder()
worker = Worker(group="billing")


async def nothing(_: Delivery) -> None:
    """Does nothing."""


async def nothing_in_batches(_: list[Delivery]) -> None:
    """Does nothing."""


async def note(delivery: Delivery) -> None:
    """Notes it."""
    record(delivery.due_ms / 1000)


async def wait(_: Delivery) -> None:
    """Waits for 1 ms, as for a reply."""
    await asyncio.sleep(0.001)


async def burn(_: Delivery) -> None:
    """Keeps a core busy for 1 ms."""
    end = time.perf_counter() + 0.001
    while time.perf_counter() < end:
        pass


handlers = {"nothing": nothing, "record": note, "wait": wait, "burn": burn}
topics, handler = os.environ["BENCH_TOPICS"].split(","), os.environ["BENCH_HANDLER"]
if handler == "nothing, batches":
    worker.on(*topics, batch=_BATCH)(nothing_in_batches)
else:
    worker.on(*topics)(handlers[handler])
