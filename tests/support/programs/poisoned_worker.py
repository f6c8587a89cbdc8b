"""A worker that keeps a journal, as `journal_worker`, and whose process ends at once when it handles poison."""

import asyncio
import os

from lisa_consumer import Delivery, Worker
from support.programs.journal_worker import note

__all__ = ["worker"]

worker = Worker(os.environ["LISA_TEST_GROUP"])


@worker.on("orders")
async def handle(delivery: Delivery) -> None:
    """Handles a message of the tests, or dies of it."""
    note("begun", delivery)
    if delivery.body == b"poison":
        os._exit(1)
    await asyncio.sleep(0.002)
    note("ended", delivery)
