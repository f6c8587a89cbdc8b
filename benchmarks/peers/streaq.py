"""streaQ."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from streaq import Worker

from benchmarks.peers.driver import URL, Message, Send
from benchmarks.stamps import Recorder, due_of

record = Recorder()
worker = Worker(redis_url=URL, concurrency=100)


@worker.task(silent=True, ttl=0)
async def handle(body: str) -> None:
    """Notes it."""
    record(due_of(body))


@asynccontextmanager
async def producer() -> AsyncIterator[Send]:
    """Schedules by `enqueue_many`."""
    async with worker:

        async def send(messages: Sequence[Message]) -> None:
            await worker.enqueue_many(
                [handle.enqueue(body).start(schedule=datetime.fromtimestamp(due_s, UTC)) for body, due_s in messages]
            )

        yield send


def work() -> None:
    """Handles until it is ended."""
    worker.run_sync()
