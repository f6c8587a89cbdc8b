"""The slot keeper: sees to it that no key stays blocked, whatever programs or damage have left behind."""

import logging

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.errors import LisaError
from lisa_common.model.keys import ShardKeys
from lisa_common.model.policy import Policy
from lisa_common.protocol.call import Call, command
from lisa_manager.jobs.discoverer import Discoverer
from lisa_manager.problem_log import ProblemLog
from lisa_manager.slots import tidy

__all__ = ["SlotKeeper"]

logger = logging.getLogger(__name__)

_AT_ONCE = 1_000
"""Most shards in one round trip."""


class SlotKeeper:
    """Tidies slots: of topics that limit them always, of others after a change, and while they have any."""

    def __init__(self, connection: AsyncConnection, discoverer: Discoverer) -> None:
        self._connection = connection
        self._discoverer = discoverer
        self._problems = ProblemLog(logger)
        self._seen: dict[str, Policy] = {}
        """The policies of the last turn."""
        self._left: set[ShardKeys] = set()
        """Shards that had slots."""

    async def turn(self) -> None:
        """Runs one turn."""
        seen, self._seen = self._seen, {name: layout.policy for name, layout in self._discoverer.layouts.items()}
        shards = [
            keys
            for name, layout in self._discoverer.layouts.items()
            for keys in layout.served
            if layout.policy.max_in_flight_per_key or seen.get(name) != layout.policy or keys in self._left
        ]
        self._left = set()
        for start in range(0, len(shards), _AT_ONCE):
            batch = shards[start : start + _AT_ONCE]
            counts = await self._connection.execute_each([_count_keys(keys) for keys in batch])
            for keys, count in zip(batch, counts, strict=True):
                if isinstance(count, LisaError) or count:
                    self._left.add(keys)
                    await self._tidy(keys)

    async def _tidy(self, keys: ShardKeys) -> None:
        subject = f"slots of {keys.tag}"
        try:
            await self._connection.run(tidy(keys, mend=True))
        except LisaError as error:
            # A node of a Cluster may be away, or a key be of another type; the other topics are tidied.
            self._problems.report(subject, error)
        else:
            self._problems.resolve(subject)


def _count_keys(keys: ShardKeys) -> Call[int]:
    return command("EXISTS", keys.of("busy"), keys.of("slots"), keys.of("parked"))
