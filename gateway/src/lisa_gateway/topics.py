"""The topics that requests name: declared when somebody sends to them or reads them."""

import time
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TypeVar

from lisa_common.errors import OF_THE_SERVER, OutcomeUnknown, UnknownTopic
from lisa_common.model.policy import DEFAULT_POLICY, Policy
from lisa_common.validation import check_name
from lisa_gateway.access.quotas import Quota
from lisa_gateway.shared_calls import SharedCalls
from lisa_manager import AsyncAdmin

__all__ = ["KnownTopics"]

T = TypeVar("T")

_REFRESH_S = 10.0
"""How long a topic counts as declared, and its policy as known: as long as for producers."""

_AWAY_S = 1.0
"""How long known topics and groups stay valid after the server could not be asked. In a Cluster, the registry, and what
a group needs to know of a reshard, may be at another node than the topic."""

_MAX_KNOWN = 100_000


@dataclass(slots=True)
class _Known:
    """A topic as it was read from the registry."""

    until: float
    policy: Policy
    group_until: float = 0.0
    """Until when the group of the settings counts as made; 0 if it was not made."""


class KnownTopics:
    """Declares topics, with the group of the settings where clients expect that, and knows their policies.

    Reads declare them as well: they make groups, which nobody could list or drop where a topic is not declared.
    """

    def __init__(self, admin: AsyncAdmin, group: str) -> None:
        self._admin = admin
        self._group = group
        self._calls = SharedCalls()
        self._known: dict[str, _Known] = {}

    def is_known(self, topic: str) -> bool:
        """Whether the topic was found declared lately, or at some time before."""
        return topic in self._known

    async def declare(self, topic: str, quota: Quota, group: str = "") -> None:
        """Makes the topic and the group of the settings, unless they exist, so that later pulls get what is sent now.

        With another `group`, makes the topic alone: a group in which nobody pulls would keep its messages for ever.
        Raises InvalidInput for an invalid name, OverQuota, TooManyGroups and other errors of the server.
        """
        known = await self._ensure(topic, quota)
        if known.group_until > time.monotonic() or (group and group != self._group):
            return
        lasts_s = _REFRESH_S
        try:
            await self._calls.share(("create_group", topic), lambda: self._admin.create_group(topic, self._group))
        except UnknownTopic:
            # It was dropped since it was found.
            self.forget(topic)
            await self.declare(topic, quota, group)
        except OF_THE_SERVER:
            if not known.group_until:
                raise
            lasts_s = _AWAY_S
        known.group_until = time.monotonic() + lasts_s

    async def ensure(self, topic: str, quota: Quota) -> Policy:
        """Returns the policy of a topic; declares a new one, and counts it.

        Raises InvalidInput for an invalid name, OverQuota and other errors of the server.
        """
        return (await self._ensure(topic, quota)).policy

    async def admit(self, topic: str, quota: Quota) -> None:
        """Counts a new topic, before somebody else declares it. Raises OverQuota and errors of the server."""
        try:
            await self._find(topic)
        except UnknownTopic:
            quota.admit_topic(topic)

    def forget(self, topic: str) -> None:
        """Forgets a topic that was dropped: the next send or read declares it again."""
        self._known.pop(topic, None)

    async def unless_dropped(self, topic: str, reading: Awaitable[list[T]]) -> list[T]:
        """What is read; nothing where the topic was dropped meanwhile, which the next read declares again."""
        try:
            return await reading
        except UnknownTopic:
            self.forget(topic)
            return []

    async def policy(self, topic: str) -> Policy:
        """The policy of a topic, at most ten seconds old while the server answers; the default for an unknown topic."""
        try:
            return (await self._find(topic)).policy
        except UnknownTopic:
            return DEFAULT_POLICY

    async def _ensure(self, topic: str, quota: Quota) -> _Known:
        try:
            return await self._find(check_name("topic", topic))
        except UnknownTopic:
            quota.admit_topic(topic)
            return await self._calls.share(("create_topic", topic), lambda: self._create(topic))

    async def _find(self, topic: str) -> _Known:
        known = self._known.get(topic)
        if known and known.until > time.monotonic():
            return known
        try:
            return await self._calls.share(("policy", topic), lambda: self._read(topic))
        except OF_THE_SERVER:
            if known is None:
                raise
            known.until = time.monotonic() + _AWAY_S
            return known

    async def _create(self, topic: str) -> _Known:
        # If it was known, it was dropped since, and its group with it.
        self.forget(topic)
        try:
            await self._admin.create_topic(topic)
        except OutcomeUnknown:
            # Whichever try makes it: nobody asks.
            await self._admin.create_topic(topic)
        # Not by `_find`, which may get what was read before.
        return await self._read(topic)

    async def _read(self, topic: str) -> _Known:
        policy = await self._admin.policy(topic)
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        before = self._known.get(topic)
        group_until = before.group_until if before else 0.0
        known = self._known[topic] = _Known(time.monotonic() + _REFRESH_S, policy, group_until)
        return known
