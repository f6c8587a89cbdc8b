"""A topic for each test, and its wakes."""

from collections.abc import Callable, Iterator

import pytest
import redis

from lisa_common.client.connection import Connection
from lisa_common.model.keys import ShardKeys, wake_channel
from support.queue import Queue


@pytest.fixture
def queue(redis_url: str, prefix: str) -> Iterator[Queue]:
    """A topic of the test's own; the test sets its clock."""
    with Connection(redis_url) as connection:
        yield Queue(connection, ShardKeys(prefix, "orders"))


@pytest.fixture
def wakes(client: redis.Redis, prefix: str) -> Iterator[Callable[[], list[str]]]:
    """Returns the wakes since the last call."""
    channel = wake_channel(prefix)
    with client.pubsub(ignore_subscribe_messages=True) as pubsub:  # type: ignore[no-untyped-call]
        pubsub.subscribe(channel)
        pubsub.get_message(timeout=5)

        def heard() -> list[str]:
            # Earlier messages arrive before this mark.
            client.publish(channel, "mark")
            said: list[str] = []
            while True:
                message = pubsub.get_message(timeout=5)
                if message is None:
                    continue
                if message["data"] == b"mark":
                    return said
                said.append(message["data"].decode())

        yield heard
