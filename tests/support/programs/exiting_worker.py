"""A worker whose handler ends its process with 2, by `os._exit` or by SystemExit in a task, as a message says."""

import asyncio
import os
import sys

from lisa_consumer import Delivery, Worker
from support.programs.journal_worker import note

__all__ = ["worker"]

worker = Worker(os.environ["LISA_TEST_GROUP"], concurrency=1)


async def _exit() -> None:
    sys.exit(2)


@worker.on("orders")
async def handle(delivery: Delivery) -> None:
    """Handles a message of the tests, or ends the process."""
    note("begun", delivery)
    if delivery.body == b"crash":
        os._exit(2)
    if delivery.body == b"exit":
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_exit())
    note("ended", delivery)
