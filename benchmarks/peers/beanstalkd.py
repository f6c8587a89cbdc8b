"""beanstalkd, by way of greenstalk."""

import math
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import greenstalk

from benchmarks.peers.driver import HOST, PORT, Message, Send
from benchmarks.stamps import Recorder, due_of


@asynccontextmanager
async def producer() -> AsyncIterator[Send]:
    """Schedules one by one: there is no command for several. Delays are whole seconds."""
    with greenstalk.Client((HOST, PORT)) as client:

        async def send(messages: Sequence[Message]) -> None:
            for body, due_s in messages:
                client.put(body, delay=max(0, math.ceil(due_s - time.time())))

        yield send


def work() -> None:
    """Handles until it is ended."""
    record = Recorder()
    with greenstalk.Client((HOST, PORT)) as client:
        while True:
            job = client.reserve()
            record(due_of(job.body))
            client.delete(job)
