"""A worker of many topics, each of which has few messages."""

import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from lisa_consumer.delivery.core import Core
from lisa_producer import AsyncProducer
from support import wait_until_async
from support.running import new_worker, working


async def test_messages_gather_for_a_read_while_several_come(
    redis_url: str, prefix: str, sender: AsyncProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read that waits for a hundred topics costs as much as some messages: only several share it."""
    topics = [f"topic-{number}" for number in range(100)]
    worker, handled, reads = new_worker(redis_url, prefix, concurrency=100), [], []
    read_once = Core.read

    def note(core: Core, *args: Any, **options: Any) -> Iterator[Any]:
        began = time.monotonic()
        result = yield from read_once(core, *args, **options)
        reads.append((began, time.monotonic(), len(result.deliveries)))
        return result

    monkeypatch.setattr(Core, "read", note)
    worker.on(*topics)(handled.append)
    for topic in topics[:2]:
        await sender.send(topic, b"x")
    async with working(worker):
        await wait_until_async(lambda: len(handled) == 2)
        for number, topic in enumerate(topics[2:22], 3):
            await sender.send(topic, b"x")
            await wait_until_async(lambda number=number: len(handled) == number)
    rests = [(count, next_began - ended) for (_, ended, count), (next_began, *_) in pairwise(reads)]
    assert min(rest for count, rest in rests if count == 2) > 0.0029
    assert min(rest for count, rest in rests if count == 1) < 0.002
