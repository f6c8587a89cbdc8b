"""A worker that its supervisor can make, and that the processes of the supervisor cannot."""

import os

from lisa_common.errors import InvalidInput
from lisa_consumer import Delivery, Worker

__all__ = ["make"]


def make() -> Worker:
    """Makes the worker, in the first process that asks."""
    if os.environ.get("LISA_TEST_MADE"):
        raise InvalidInput("worker", "made", "made once")
    os.environ["LISA_TEST_MADE"] = "yes"
    worker = Worker("billing")

    @worker.on("orders")
    async def handle(delivery: Delivery) -> None:
        """Never called."""

    return worker
