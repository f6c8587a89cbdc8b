"""RQ."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import redis
from rq import Queue

from benchmarks.peers.driver import URL, Message, Send
from benchmarks.stamps import Recorder, due_of

record = Recorder()


def handle(body: str) -> None:
    """Notes it."""
    record(due_of(body))


@asynccontextmanager
async def producer() -> AsyncIterator[Send]:
    """Schedules one by one: `enqueue_many` takes no time."""
    queue = Queue(connection=redis.Redis.from_url(URL))

    async def send(messages: Sequence[Message]) -> None:
        for body, due_s in messages:
            queue.enqueue_at(datetime.fromtimestamp(due_s, UTC), "benchmarks.peers.rq.handle", body, result_ttl=0)

    yield send
