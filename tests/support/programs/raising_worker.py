"""A worker whose handler fails as the body of its message says."""

import os

from lisa_consumer import Delivery, Reject, Retry, Worker

__all__ = ["worker"]

worker = Worker(os.environ["LISA_TEST_GROUP"])


@worker.on("orders")
async def handle(delivery: Delivery) -> None:
    """Raises what the test asks for."""
    if delivery.body == b"retry":
        raise Retry("not yet", delay=3600)
    if delivery.body == b"reject":
        raise Reject("never")
    raise ValueError("no luck\n at all")
