"""What tests of several topics look at, and how they read."""

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

import redis

from lisa_common.model.keys import ShardKeys
from lisa_consumer import AsyncConsumer, Delivery
from lisa_manager import AsyncAdmin
from lisa_manager.daemon import Manager
from support.running import managed

__all__ = ["Site", "take"]


@dataclass
class Site:
    """What a test looks at and operates."""

    url: str
    prefix: str
    client: redis.Redis
    admin: AsyncAdmin

    def ids(self, topic: str, key: str = "messages") -> set[str]:
        """The members of a key of a topic."""
        name = ShardKeys(self.prefix, topic).of(key)
        members: Any = self.client.hkeys(name) if key == "messages" else self.client.zrange(name, 0, -1)
        return {member.decode() for member in members}

    def managed(self, **settings: Any) -> AbstractAsyncContextManager[Manager]:
        """Runs a manager."""
        return managed(self.url, self.prefix, **settings)


async def take(consumer: AsyncConsumer, count: int = 1) -> list[Delivery]:
    """Reads until there are so many deliveries."""
    deliveries: list[Delivery] = []
    while len(deliveries) < count:
        some = await consumer.read(limit=count, wait=30)
        assert some, f"{len(deliveries)} of {count} arrived"
        deliveries += some
    return deliveries
