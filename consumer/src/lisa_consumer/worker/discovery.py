"""Finds the topics that fit the patterns of a worker, while it works."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.client.async_tasks import beside
from lisa_common.errors import LisaError
from lisa_common.logs import event
from lisa_common.protocol.registry import read_registry
from lisa_consumer.handling.handler import Route
from lisa_consumer.handling.routing import PatternRoute
from lisa_consumer.worker.life import Life

__all__ = ["Discovery"]

logger = logging.getLogger(__name__)

_PAUSE_S = 2.0
"""The pause between two looks at the registry."""


class Discovery:
    """Looks at the registry, and adds and removes routes by it. A topic keeps the first route that fits it."""

    def __init__(
        self,
        connection: AsyncConnection,
        prefix: str,
        patterns: Sequence[PatternRoute],
        life: Life,
    ) -> None:
        self._connection = connection
        self._prefix = prefix
        self._patterns = patterns
        self._life = life
        self._found: set[str] = set()
        self._is_reported = False

    @asynccontextmanager
    async def running(self, *, once: bool) -> AsyncIterator[None]:
        """Looks once; unless `once`, looks again and again until the block ends."""
        if self._patterns:
            await self._look()
        async with beside(self._keep_looking()) if self._patterns and not once else nullcontext():
            yield

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(_PAUSE_S)
            await self._look()

    async def _look(self) -> None:
        """Looks once. An error is logged: the next look may succeed."""
        try:
            registered = await self._connection.run(read_registry(self._prefix))
            new = [topic for topic in sorted(registered) if topic not in self._life.routes]
            routes = [route for topic in new if (route := self._route_of(topic))]
            if routes:
                await self._life.add(routes)
        except LisaError as error:
            if not self._is_reported:
                logger.warning(
                    "cannot look for topics, will retry: %s", error, extra=event("discovery_failed", error=str(error))
                )
            self._is_reported = True
            return
        self._is_reported = False
        if routes:
            self._found.update(route.topic for route in routes)
            logger.info(
                "found topics: %s",
                ", ".join(route.topic for route in routes),
                extra=event("topics_found", topics=[route.topic for route in routes]),
            )
        for topic in self._found - registered.keys():
            self._found.discard(topic)
            self._life.remove(topic)
            logger.info("topic %s was dropped", topic, extra=event("topic_gone", topic=topic))

    def _route_of(self, topic: str) -> Route | None:
        return next((each.route_of(topic) for each in self._patterns if each.pattern.fits(topic)), None)
