"""Runs managers and workers in the event loop of the test."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from lisa_consumer import ConsumerSettings, Delivery, Worker
from lisa_manager.daemon import Manager
from lisa_manager.settings import ManagerSettings

__all__ = ["Handled", "hang", "managed", "new_worker", "working"]


@asynccontextmanager
async def managed(url: str, prefix: str, **settings: Any) -> AsyncIterator[Manager]:
    """Runs a manager with short intervals."""
    hasty = {"discover_s": 0.2, "housekeeping_s": 0.05, "poll_s": 0.2, "quiet_poll_s": 0.5}
    manager = Manager(ManagerSettings(redis_url=url, prefix=prefix, **(hasty | settings)))
    async with _running(manager.run, manager.stop):
        yield manager


def new_worker(url: str, prefix: str, group: str = "billing", **settings: Any) -> Worker:
    """Makes a worker that stops quickly."""
    given = ConsumerSettings(redis_url=url, prefix=prefix, **({"block_s": 0.1, "drain_s": 5} | settings))
    return Worker(group, settings=given)


@asynccontextmanager
async def working(*workers: Worker) -> AsyncIterator[None]:
    """Runs workers, and drains them at the end."""
    if not workers:
        yield
        return
    async with _running(workers[0].serve, workers[0].stop), working(*workers[1:]):
        yield


@asynccontextmanager
async def _running(run: Callable[[], Awaitable[None]], stop: Callable[[], None]) -> AsyncIterator[None]:
    """Ends the block with the error of a program that fails: what the block waits for would not come."""
    task, block = asyncio.ensure_future(run()), asyncio.current_task()

    def end(_: object) -> None:
        if block is not None and not task.cancelled() and task.exception():
            block.cancel()

    task.add_done_callback(end)
    try:
        yield
    finally:
        task.remove_done_callback(end)
        stop()
        await task


class Handled(list[Delivery]):
    """The deliveries of a handler, in order."""

    @property
    def ids(self) -> list[str]:
        """Their message ids."""
        return [delivery.id for delivery in self]


def hang(worker: Worker, topic: str, gate: asyncio.Event, *, concurrency: int | None = None) -> Handled:
    """Has the handler of a topic wait at a gate. Returns the deliveries that wait there."""
    begun = Handled()

    @worker.on(topic, concurrency=concurrency)
    async def wait(delivery: Delivery) -> None:
        begun.append(delivery)
        await gate.wait()

    return begun
