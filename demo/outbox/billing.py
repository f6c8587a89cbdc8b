"""The shop's worker: closes unpaid orders, sends receipts, and notes each delivery in a journal."""

import os
from pathlib import Path

from lisa_consumer import Delivery, Worker

__all__ = ["worker"]

worker = Worker(group="billing")
_JOURNAL = Path(os.environ["DEMO_JOURNAL"])


@worker.on("orders")
def close_unpaid(delivery: Delivery) -> None:
    """Closes an order."""
    _note(delivery)


@worker.on("receipts")
def send_receipt(delivery: Delivery) -> None:
    """Sends a receipt."""
    _note(delivery)


def _note(delivery: Delivery) -> None:
    with _JOURNAL.open("a", encoding="utf-8") as journal:
        journal.write(f"{delivery.topic} {delivery.json()['order']}\n")
