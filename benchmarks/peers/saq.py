"""saq."""

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from saq import Queue, Worker

from benchmarks.peers.driver import URL, Message, Send
from benchmarks.stamps import Recorder, due_of

record = Recorder()
_AT_ONCE = 50


async def handle(_: Any, *, body: str) -> None:
    """Notes it."""
    record(due_of(body))


@asynccontextmanager
async def producer() -> AsyncIterator[Send]:
    """Schedules one by one, many at once: there is no call for several. The time is in whole seconds."""
    queue = Queue.from_url(URL)
    await queue.connect()

    async def send(messages: Sequence[Message]) -> None:
        for at in range(0, len(messages), _AT_ONCE):
            await asyncio.gather(
                *(
                    queue.enqueue("handle", body=body, scheduled=math.ceil(due_s), ttl=-1)
                    for body, due_s in messages[at : at + _AT_ONCE]
                )
            )

    yield send
    await queue.disconnect()


def work() -> None:
    """Handles until it is ended."""
    asyncio.run(Worker(Queue.from_url(URL), [("handle", handle)], concurrency=100).start())
