"""arq."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from arq import Worker, create_pool, func
from arq.connections import RedisSettings

from benchmarks.peers.driver import URL, Message, Send
from benchmarks.stamps import Recorder, due_of

record = Recorder()
_AT_ONCE = 50


async def handle(_: dict[str, Any], body: str) -> None:
    """Notes it."""
    record(due_of(body))


@asynccontextmanager
async def producer() -> AsyncIterator[Send]:
    """Schedules one by one, many at once: there is no call for several."""
    pool = await create_pool(RedisSettings.from_dsn(URL))

    async def send(messages: Sequence[Message]) -> None:
        for at in range(0, len(messages), _AT_ONCE):
            await asyncio.gather(
                *(
                    pool.enqueue_job("handle", body, _defer_until=datetime.fromtimestamp(due_s, UTC))
                    for body, due_s in messages[at : at + _AT_ONCE]
                )
            )

    yield send
    await pool.aclose()


def work() -> None:
    """Handles until it is ended."""
    functions = [func(handle, name="handle", keep_result=0)]
    Worker(functions, redis_settings=RedisSettings.from_dsn(URL), max_jobs=100, poll_delay=0.01).run()
