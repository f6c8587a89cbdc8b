"""dramatiq on Redis."""

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from benchmarks.peers.driver import URL, Message, Send
from benchmarks.stamps import Recorder, due_of

record = Recorder()
dramatiq.set_broker(RedisBroker(url=URL))


@dramatiq.actor(actor_name="handle")
def handle(body: str) -> None:
    """Notes it."""
    record(due_of(body))


@asynccontextmanager
async def producer() -> AsyncIterator[Send]:
    """Schedules one by one: there is no call for several."""

    async def send(messages: Sequence[Message]) -> None:
        for body, due_s in messages:
            handle.send_with_options(args=(body,), delay=max(0, round((due_s - time.time()) * 1000)))

    yield send
