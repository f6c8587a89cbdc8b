"""A worker whose handler ignores its cancellation."""

import asyncio
from contextlib import suppress

from lisa_consumer import Delivery, Worker

__all__ = ["worker"]

worker = Worker("billing")


@worker.on("orders")
async def handle(delivery: Delivery) -> None:  # noqa: ARG001 - a handler is given it
    """Waits for ever."""
    print("begun", flush=True)  # noqa: T201 - its log
    while True:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
