"""docket (pydocket)."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

from docket import Docket, Worker

from benchmarks.peers.driver import URL, Message, Send
from benchmarks.stamps import Recorder, due_of

record = Recorder()
_OFTEN = timedelta(milliseconds=10)


async def handle(body: str) -> None:
    """Notes it."""
    record(due_of(body))


@asynccontextmanager
async def producer() -> AsyncIterator[Send]:
    """Schedules by `add_many`."""
    async with Docket("bench", URL, execution_ttl=timedelta(0)) as docket:
        docket.register(handle)

        async def send(messages: Sequence[Message]) -> None:
            calls = [docket.call(handle, when=datetime.fromtimestamp(due_s, UTC))(body) for body, due_s in messages]
            await docket.add_many(calls)

        yield send


def work() -> None:
    """Handles until it is ended."""
    asyncio.run(_work())


async def _work() -> None:
    async with Docket("bench", URL, execution_ttl=timedelta(0)) as docket:
        docket.register(handle)
        options = {"minimum_check_interval": _OFTEN, "scheduling_resolution": _OFTEN}
        async with Worker(docket, concurrency=50, **options) as worker:
            await worker.run_forever()
