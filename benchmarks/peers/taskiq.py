"""taskiq with taskiq-redis."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from taskiq import TaskiqScheduler
from taskiq_redis import ListRedisScheduleSource, RedisStreamBroker

from benchmarks.peers.driver import URL, Message, Send
from benchmarks.stamps import Recorder, due_of

_AT_ONCE = 50

record = Recorder()
broker = RedisStreamBroker(URL)
source = ListRedisScheduleSource(URL)
scheduler = TaskiqScheduler(broker, [source])


@broker.task(task_name="handle")
async def handle(body: str) -> None:
    """Notes it."""
    record(due_of(body))


@asynccontextmanager
async def producer() -> AsyncIterator[Send]:
    """Schedules one by one, many at once: there is no call for several."""
    await broker.startup()
    await source.startup()

    async def send(messages: Sequence[Message]) -> None:
        for at in range(0, len(messages), _AT_ONCE):
            await asyncio.gather(
                *(
                    handle.schedule_by_time(source, datetime.fromtimestamp(due_s, UTC), body)
                    for body, due_s in messages[at : at + _AT_ONCE]
                )
            )

    yield send
    await broker.shutdown()
