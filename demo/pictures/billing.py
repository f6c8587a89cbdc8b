"""The shop's worker, run by `lisa-consumer run demo.pictures.billing:worker`. Each order says how it ends."""

import asyncio
import os

from lisa_consumer import Delivery, Reject, Worker

__all__ = ["worker"]

worker = Worker(group="billing", concurrency=4, name=os.environ.get("SHOP_WORKER"))


@worker.on("orders")
async def close(delivery: Delivery) -> None:
    """Closes an order that is not paid."""
    order = delivery.json()
    if "number" not in order:
        raise Reject("the order has no number")
    if order.get("bank") == "away":
        raise TimeoutError("the bank did not answer within 5 s")
    if order.get("bank") == "slow":
        await asyncio.sleep(600)
    print(order["number"], order["price"])


@worker.on("reminders")
async def remind(delivery: Delivery) -> None:
    """Reminds a customer."""
    delivery.json()
