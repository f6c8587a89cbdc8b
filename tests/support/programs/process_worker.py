"""A worker whose handler runs in processes."""

from lisa_consumer import Delivery, Worker
from support.process_handlers import handle

__all__ = ["work", "worker"]

worker = Worker("billing")


@worker.on("orders", run_in="process", concurrency=1)
def work(delivery: Delivery) -> None:
    """Does what the body says."""
    handle(delivery)


if __name__ == "__main__":
    worker.run()
