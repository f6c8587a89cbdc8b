"""A worker of many topics, each of which has few messages."""

import time
from itertools import pairwise
from typing import Any

import pytest

from lisa_consumer.delivery.core import Core
from lisa_producer import AsyncProducer
from support import wait_until_async
from support.running import new_worker, working


async def test_messages_of_many_topics_gather_before_a_read(
    redis_url: str, prefix: str, sender: AsyncProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read that waits for a hundred topics costs the server more than some messages: so few bring more each."""
    topics = [f"topic-{number}" for number in range(100)]
    worker, handled, read_at = new_worker(redis_url, prefix, concurrency=100), [], []
    read_leased = Core.read_leased

    def note(core: Core, *args: Any, **options: Any) -> Any:
        read_at.append(time.monotonic())
        return read_leased(core, *args, **options)

    monkeypatch.setattr(Core, "read_leased", note)
    worker.on(*topics)(handled.append)
    async with working(worker):
        for topic in topics:
            await sender.send(topic, b"x")
        await wait_until_async(lambda: len(handled) == len(topics))
    assert min(after - before for before, after in pairwise(read_at)) > 0.0019
