"""The limits repairer: completes changes of limits that were interrupted between the registry and the shards."""

import logging

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.errors import LisaError
from lisa_common.model.limits import limits_of
from lisa_common.model.sharding import Layout
from lisa_manager.jobs.discoverer import Discoverer
from lisa_manager.jobs.policy_changes import PolicyChanges
from lisa_manager.problem_log import ProblemLog
from lisa_manager.queries import PAGE, chunks
from lisa_manager.topic_limits import apply_limits, read_limits

__all__ = ["LimitsRepairer"]

logger = logging.getLogger(__name__)


class LimitsRepairer:
    """Compares the limits of shards with the policies: always of topics that have, or had, limits; else after a change.

    A producer that has read the former policy may set the former limits late, as its call may be repeated for long.
    """

    def __init__(self, connection: AsyncConnection, discoverer: Discoverer) -> None:
        self._connection = connection
        self._problems = ProblemLog(logger)
        self._changes = PolicyChanges(discoverer, lambda policy: policy.is_limited or policy.limits_revision)

    async def turn(self) -> None:
        """Runs one turn over these topics."""
        shards = [(layout, keys) for layout in self._changes.take() for keys in layout.served]
        wrong: dict[str, Layout] = {}
        for batch in chunks(shards, PAGE):
            limits = await self._connection.execute_each([read_limits(keys) for _, keys in batch])
            for (layout, keys), stored in zip(batch, limits, strict=True):
                if isinstance(stored, LisaError) or stored != limits_of(layout, keys):
                    wrong[layout.topic] = layout
        for layout, _ in shards:
            if layout.topic not in wrong:
                self._changes.end(layout)
        for layout in wrong.values():
            # A node of a Cluster may be away, or a key be of another type; the other topics get their limits.
            with self._problems.watching(f"limits of {layout.topic}"):
                await self._connection.run(apply_limits(layout.prefix, layout.topic))
                self._changes.end(layout)
