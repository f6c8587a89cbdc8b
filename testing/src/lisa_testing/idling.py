"""Drops topics that nobody uses, by the time that a test lets pass."""

from collections.abc import Sequence

from lisa_common.client.connection import Connection
from lisa_common.model.policy import Policy
from lisa_common.model.sharding import Layout
from lisa_common.protocol.consuming import server_time
from lisa_manager.topic_drop import drop_topic
from lisa_manager.topic_use import read_use

__all__ = ["IdleTopics"]


class IdleTopics:
    """As a manager's idle expirer. The server's clock does not jump, so this adds the time that was let pass since."""

    def __init__(self, connection: Connection, prefix: str) -> None:
        self._connection = connection
        self._prefix = prefix
        self._jumps: list[tuple[int, int]] = []
        """When time was let pass, by the server's clock, and how much, in ms."""
        self._known: dict[str, tuple[Policy, int]] = {}
        """The policy of each topic that expires, and since when it has it, by the server's clock in ms."""

    def jump(self, found: Sequence[Layout], by_ms: int) -> None:
        """Notes that time is let pass; `found` are the topics that there are before."""
        if self._see(found):
            self._jumps.append((self._connection.call(server_time()), by_ms))

    def drop(self, found: Sequence[Layout]) -> None:
        """Drops those of these topics that have been unused for the time of their policy."""
        for layout in self._see(found):
            policy = layout.policy
            if not policy.expire_idle_ms or policy.paused:
                continue
            use = self._connection.run(read_use(layout, read_ms=0))
            since_ms = max(use.used_ms, self._known[layout.topic][1])
            passed_ms = use.now_ms - since_ms + sum(by_ms for at_ms, by_ms in self._jumps if at_ms >= since_ms)
            is_forced = policy.expire_idle == "always"
            if passed_ms >= policy.expire_idle_ms and (use.is_drained or is_forced) and not use.has_schedules:
                flow = drop_topic(self._prefix, layout.topic, force=is_forced, last=use.last)
                self._connection.run(flow)

    def _see(self, found: Sequence[Layout]) -> list[Layout]:
        """Notes since when topics expire. Returns these topics."""
        expiring = [layout for layout in found if layout.policy.expire_idle_ms]
        before, self._known = self._known, {}
        if expiring:
            now_ms = self._connection.call(server_time())
            for layout in expiring:
                known = before.get(layout.topic)
                is_same = known is not None and known[0] == layout.policy
                self._known[layout.topic] = known if known and is_same else (layout.policy, now_ms)
        return expiring
