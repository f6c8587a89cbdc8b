"""The topics that requests name: declared when somebody sends to them or reads them."""

import time
from collections.abc import Awaitable, Mapping
from typing import TypeVar

from lisa_common.errors import UnknownTopic
from lisa_common.model.policy import DEFAULT_POLICY, Policy
from lisa_common.validation import check_name
from lisa_gateway.access.quotas import Quota
from lisa_gateway.settings import GatewaySettings
from lisa_gateway.shared_calls import SharedCalls
from lisa_manager import AsyncAdmin

__all__ = ["KnownTopics"]

T = TypeVar("T")

_REFRESH_S = 10.0
"""How long a topic counts as declared, and its policy as known: as long as for producers."""

_MAX_KNOWN = 100_000


class KnownTopics:
    """Declares topics, with the group of the settings where clients expect that, and knows their policies.

    Reads declare them as well: they make groups, which nobody could list or drop where a topic is not declared.
    """

    def __init__(self, admin: AsyncAdmin, settings: GatewaySettings) -> None:
        self._admin = admin
        self._settings = settings
        self._calls = SharedCalls()
        self._declared: dict[str, float] = {}
        self._policies: dict[str, tuple[float, Policy]] = {}

    def is_known(self, topic: str) -> bool:
        """Whether the topic was found declared lately, or at some time before."""
        return topic in self._policies

    async def declare(self, topic: str, quota: Quota, group: str = "") -> None:
        """Makes the topic and the group of the settings, unless they exist, so that later pulls get what is sent now.

        With another `group`, makes the topic alone: a group in which nobody pulls would keep its messages for ever.
        Raises InvalidInput for an invalid name, OverQuota, TooManyGroups and other errors of the server.
        """
        if self._declared.get(topic, 0) > time.monotonic():
            return
        # An id that has ended may be sent again at once, as with camellia.
        await self.ensure(topic, quota, **({"dedup_window_ms": 0} if self._settings.resend_ended else {}))
        if group and group != self._settings.group:
            return
        await self._calls.share(("create_group", topic), lambda: self._admin.create_group(topic, self._settings.group))
        if len(self._declared) >= _MAX_KNOWN:
            self._declared.clear()
        self._declared[topic] = time.monotonic() + _REFRESH_S

    async def admit(self, topic: str, quota: Quota) -> None:
        """Counts a new topic, before it is declared. Raises OverQuota and errors of the server."""
        try:
            await self._policy(topic)
        except UnknownTopic:
            quota.admit_topic(topic)

    async def ensure(self, topic: str, quota: Quota, **fields: int) -> Policy:
        """Returns the policy of a topic; declares a new one with these fields, and counts it.

        Raises InvalidInput for an invalid name, OverQuota and other errors of the server.
        """
        try:
            return await self._policy(check_name("topic", topic))
        except UnknownTopic:
            quota.admit_topic(topic)
            return await self._calls.share(("create_topic", topic), lambda: self._create(topic, fields))

    async def unless_dropped(self, topic: str, reading: Awaitable[list[T]]) -> list[T]:
        """What is read; nothing where the topic was dropped meanwhile, which the next read declares again."""
        try:
            return await reading
        except UnknownTopic:
            self._policies.pop(topic, None)
            self._declared.pop(topic, None)
            return []

    async def policy(self, topic: str) -> Policy:
        """The policy of a topic, at most ten seconds old; the default one where there is no topic."""
        try:
            return await self._policy(topic)
        except UnknownTopic:
            return DEFAULT_POLICY

    async def _policy(self, topic: str) -> Policy:
        until, policy = self._policies.get(topic, (0.0, DEFAULT_POLICY))
        if until > time.monotonic():
            return policy
        return await self._calls.share(("policy", topic), lambda: self._read_policy(topic))

    async def _create(self, topic: str, fields: Mapping[str, int]) -> Policy:
        await self._admin.create_topic(topic, **fields)
        # Not by `_policy`, which may get what was read before.
        return await self._read_policy(topic)

    async def _read_policy(self, topic: str) -> Policy:
        policy = await self._admin.policy(topic)
        if len(self._policies) >= _MAX_KNOWN:
            self._policies.clear()
        self._policies[topic] = (time.monotonic() + _REFRESH_S, policy)
        return policy
