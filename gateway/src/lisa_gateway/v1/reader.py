"""Reads messages for requests."""

import asyncio

from starlette.requests import Request

from lisa_consumer import AsyncConsumer, Held
from lisa_gateway.gateway import Gateway

__all__ = ["Reader"]


class Reader:
    """Reads messages for requests."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._consumers: dict[tuple[str, str], AsyncConsumer] = {}
        self._lock = asyncio.Lock()

    async def read(
        self, topic: str, group: str, request: Request, *, limit: int, wait_s: float, lease_s: float | None
    ) -> list[Held]:
        """Up to `limit` deliveries; waits for the first. Empty if none comes, or the client has gone."""
        consumer = self._consumers.get((topic, group))
        if consumer is None:
            consumer = AsyncConsumer((topic,), group, settings=self._gateway.consumer_settings)
            self._consumers[topic, group] = consumer
        deliveries = await consumer.read(limit, wait=wait_s or None, visibility=lease_s)
        return [Held(delivery, consumer.name) for delivery in deliveries]
