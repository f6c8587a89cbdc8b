"""A worker whose handler runs in a thread, beyond its timeout, while the file that `LISA_TEST_HOLD` names is there."""

import os
from pathlib import Path

from lisa_consumer import Delivery, Worker
from support.waiting import wait_until

__all__ = ["worker"]

worker = Worker("billing")
_hold = Path(os.environ["LISA_TEST_HOLD"])


@worker.on("orders", timeout=0.2)
def handle(delivery: Delivery) -> None:  # noqa: ARG001 - a handler is given it
    """Waits until the test lets it end."""
    print("begun", flush=True)  # noqa: T201 - its log
    wait_until(lambda: not _hold.exists(), 60)
