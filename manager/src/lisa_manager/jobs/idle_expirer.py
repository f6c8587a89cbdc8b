"""The idle expirer: drops topics that nobody has used for the time that their policy says."""

import asyncio
import logging
from contextlib import suppress

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.errors import UnknownTopic
from lisa_common.logs import event
from lisa_common.model.keys import bytes_of, idle_key, text_of
from lisa_common.model.policy import Policy
from lisa_common.model.sharding import Layout
from lisa_common.protocol.call import command
from lisa_common.protocol.replies import pairs
from lisa_manager.jobs.discoverer import Discoverer
from lisa_manager.problem_log import ProblemLog
from lisa_manager.settings import ManagerSettings
from lisa_manager.topic_drop import drop_topic
from lisa_manager.topic_use import TopicUse, read_use

__all__ = ["IdleExpirer"]

logger = logging.getLogger(__name__)

_LOOKS = 4
"""How often a topic is checked within the time after which it expires; so it is dropped late by one part of that
time.
"""

_LONGEST_REST_S = 30.0
_DIGITS = 15
"""The most digits of a time in ms; another program may write more."""


class IdleExpirer:
    """Looks at the topics whose policy has `expire_idle_ms`, a few times within that.

    The hash `idle` says since when each is unused, so that a restart or another manager goes on counting.
    """

    def __init__(self, connection: AsyncConnection, discoverer: Discoverer, settings: ManagerSettings) -> None:
        self._connection = connection
        self._discoverer = discoverer
        self._settings = settings
        self._problems = ProblemLog(logger)
        self._layouts: dict[str, Layout] = {}
        self._watched: dict[str, Layout] = {}
        self._due: dict[str, float] = {}
        self._policies: dict[str, Policy] = {}
        """The policy that each topic had at the last look: a changed one counts as use."""

    async def turn(self) -> None:
        """Looks at the topics that are due. Raises an error of the server, where all topics are on one."""
        if self._layouts is not self._discoverer.layouts:
            self._layouts = self._discoverer.layouts
            # With a paused topic its pause would go: what is sent later would become ready.
            self._watched = {
                name: each
                for name, each in self._layouts.items()
                if each.policy.expire_idle_ms and not each.policy.paused
            }
            self._due = {name: self._due.get(name, 0.0) for name in self._watched}
            self._policies = {name: policy for name, policy in self._policies.items() if name in self._watched}
        now = asyncio.get_running_loop().time()
        due = [layout for name, layout in self._watched.items() if self._due[name] <= now]
        if not due:
            return
        since = await self._read_since()
        for layout in due:
            rest_s = (layout.policy.expire_idle_ms or 0) / 1000 / _LOOKS
            self._due[layout.topic] = now + min(max(rest_s, self._settings.housekeeping_s), _LONGEST_REST_S)
            node = self._connection.node_of(layout.shards[0])
            # One node of a Cluster may be away; the topics of the others expire all the same. An unknown topic was
            # dropped by another manager or an operator.
            with self._problems.watching(f"idle expiry of {layout.topic}", node=node), suppress(UnknownTopic):
                await self._look(layout, since.get(layout.topic))

    async def _read_since(self) -> dict[str, int]:
        """Since when topics are unused, in ms. Forgets topics that no longer expire."""
        key = idle_key(self._settings.prefix)
        flat: list[bytes] = await self._connection.call(command("HGETALL", key))
        stored = {text_of(name): value for name, value in pairs(flat)}
        if gone := stored.keys() - self._watched.keys():
            await self._connection.call(command("HDEL", key, *map(bytes_of, gone)))
        # A foreign value counts as none.
        return {name: int(value) for name, value in stored.items() if value.isdigit() and len(value) <= _DIGITS}

    async def _look(self, layout: Layout, since_ms: int | None) -> None:
        use = await self._connection.run(read_use(layout))
        before = self._policies.get(layout.topic, layout.policy)
        self._policies[layout.topic] = layout.policy
        unused_ms = _unused_since(layout.policy, use, None if before != layout.policy else since_ms)
        if unused_ms != since_ms:
            key = idle_key(layout.prefix)
            await self._connection.call(command("HSET", key, layout.topic, unused_ms))
        if use.now_ms - unused_ms >= (layout.policy.expire_idle_ms or 0):
            await self._drop(layout, use, unused_ms)

    async def _drop(self, layout: Layout, use: TopicUse, unused_ms: int) -> None:
        force = layout.policy.expire_idle == "always"
        drop = drop_topic(layout.prefix, layout.topic, force=force, last=use.last, seen=layout.policy)
        dropped = await self._connection.run(drop)
        if dropped.done:
            log = logger.warning if dropped.messages else logger.info
            log(
                "dropped topic %s with %d messages: unused for %.0f s",
                *(layout.topic, dropped.messages, (use.now_ms - unused_ms) / 1000),
                extra=event("topic_expired", topic=layout.topic, count=dropped.messages),
            )


def _unused_since(policy: Policy, use: TopicUse, since_ms: int | None) -> int:
    """Since when a topic is unused, in ms: at the earliest since a manager first saw that."""
    if since_ms is None or use.has_schedules or (not use.is_drained and policy.expire_idle == "drained"):
        return use.now_ms
    # The clock may have been set back.
    return min(use.now_ms, max(since_ms, use.used_ms))
