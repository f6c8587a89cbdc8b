"""Celery on Redis."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from celery import Celery

from benchmarks.peers.driver import URL, Message, Send
from benchmarks.stamps import Recorder, due_of

record = Recorder()
app = Celery("bench", broker=URL)
app.conf.task_ignore_result = True


@app.task(name="handle")
def handle(body: str) -> None:
    """Notes it."""
    record(due_of(body))


@asynccontextmanager
async def producer() -> AsyncIterator[Send]:
    """Schedules one by one, on one connection: there is no call for several."""
    with app.producer_pool.acquire(block=True) as kept:

        async def send(messages: Sequence[Message]) -> None:
            for body, due_s in messages:
                handle.apply_async((body,), eta=datetime.fromtimestamp(due_s, UTC), producer=kept)

        yield send
