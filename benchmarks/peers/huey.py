"""huey on Redis."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime

from huey import RedisHuey

from benchmarks.peers.driver import URL, Message, Send
from benchmarks.stamps import Recorder, due_of

record = Recorder()
huey = RedisHuey("bench", url=URL, results=False)


@huey.task()
def handle(body: str) -> None:
    """Notes it."""
    record(due_of(body))


@asynccontextmanager
async def producer() -> AsyncIterator[Send]:
    """Schedules one by one: there is no call for several."""

    async def send(messages: Sequence[Message]) -> None:
        for body, due_s in messages:
            # huey takes naive times for local ones.
            handle.schedule(args=(body,), eta=datetime.fromtimestamp(due_s))  # noqa: DTZ006

    yield send
