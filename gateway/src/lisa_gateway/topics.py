"""The topics that requests name: declared when somebody sends to them."""

import asyncio
import time

from lisa_common.errors import UnknownTopic
from lisa_common.model.policy import DEFAULT_POLICY, Policy
from lisa_gateway.settings import GatewaySettings
from lisa_manager import AsyncAdmin

__all__ = ["KnownTopics"]

_REFRESH_S = 10.0
"""How long a topic counts as declared, and its policy as known: as long as for producers."""

_MAX_KNOWN = 100_000


class KnownTopics:
    """Declares topics with their group, and knows their policies."""

    def __init__(self, admin: AsyncAdmin, settings: GatewaySettings) -> None:
        self._admin = admin
        self._settings = settings
        self._declared: dict[str, float] = {}
        self._policies: dict[str, tuple[float, Policy]] = {}
        self._under_way: dict[str, asyncio.Task[None]] = {}

    def is_declared(self, topic: str) -> bool:
        """Whether `declare` would find it known: then it need not be awaited."""
        return self._declared.get(topic, 0) > time.monotonic()

    async def declare(self, topic: str) -> None:
        """Makes the topic and its group, unless they exist, so that later pulls get what is sent now.

        Raises InvalidInput for an invalid name, TooManyGroups and other errors of the server.
        """
        if self.is_declared(topic):
            return
        task = self._under_way.get(topic)
        if task is None:
            task = self._under_way[topic] = asyncio.create_task(self._make(topic))
            task.add_done_callback(lambda _: self._under_way.pop(topic, None))
        # A client that hangs up must not end it for the others.
        await asyncio.shield(task)

    async def _make(self, topic: str) -> None:
        # An id that has ended may be sent again at once, as with camellia.
        fields = {"dedup_window_ms": 0} if self._settings.resend_ended else {}
        await self._admin.create_topic(topic, **fields)
        await self._admin.create_group(topic, self._settings.group)
        if len(self._declared) >= _MAX_KNOWN:
            self._declared.clear()
        self._declared[topic] = time.monotonic() + _REFRESH_S

    async def policy(self, topic: str) -> Policy:
        """The policy of a topic, at most ten seconds old; the default one where there is no topic."""
        until, policy = self._policies.get(topic, (0.0, DEFAULT_POLICY))
        if until > time.monotonic():
            return policy
        try:
            policy = await self._admin.policy(topic)
        except UnknownTopic:
            return DEFAULT_POLICY
        if len(self._policies) >= _MAX_KNOWN:
            self._policies.clear()
        self._policies[topic] = (time.monotonic() + _REFRESH_S, policy)
        return policy
