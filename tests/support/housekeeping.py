"""Does the manager's work at times that a test chooses."""

from dataclasses import dataclass

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.model.keys import ShardKeys
from lisa_common.model.policy import DEFAULT_POLICY, Policy
from lisa_common.protocol import managing
from lisa_common.protocol.call import command

__all__ = ["Housekeeper", "server_ms"]


async def server_ms(connection: AsyncConnection) -> int:
    """What the server's clock shows, in ms."""
    now: int = await connection.call(command("TIME", decode=lambda time: int(time[0]) * 1000 + int(time[1]) // 1000))
    return now


@dataclass(frozen=True, slots=True)
class Housekeeper:
    """Promotes and reclaims as if it were `after_s` seconds later."""

    connection: AsyncConnection
    prefix: str
    policy: Policy = DEFAULT_POLICY

    async def promote(self, topic: str, *, after_s: float = 0) -> int:
        """Promotes what is due. Returns how many."""
        now_ms = await self._now_ms(after_s)
        promoted = await self.connection.call(managing.promote(self._keys(topic), limit=1_000, now_ms=now_ms))
        return promoted.count

    async def reclaim(self, topic: str, group: str, *, after_s: float = 0) -> int:
        """Takes back deliveries whose leases have run out. Returns how many."""
        now_ms = await self._now_ms(after_s)
        call = managing.reclaim(self._keys(topic), group, self.policy, cursor="0-0", limit=1_000, now_ms=now_ms)
        return (await self.connection.call(call)).count

    def _keys(self, topic: str) -> ShardKeys:
        return ShardKeys(self.prefix, topic)

    async def _now_ms(self, after_s: float) -> int:
        return await server_ms(self.connection) + int(after_s * 1000)
