"""A worker whose handler fails as the body says: the number of attempts that fail, or -1 for a rejection."""

import os

from prometheus_client import Counter

from lisa_consumer import Delivery, Reject, Retry, Worker

__all__ = ["worker"]

worker = Worker(os.environ.get("LISA_TEST_GROUP", "billing"))
_handled = Counter("app_handled", "A metric of the user's own.")


@worker.on(*os.environ["LISA_TEST_TOPICS"].split())
async def handle(delivery: Delivery) -> None:
    """Handles a message of the tests."""
    _handled.inc()
    failures = int(delivery.body)
    if failures < 0:
        raise Reject("the test wants garbage")
    if delivery.attempt <= failures:
        raise Retry("the test wants a retry")
