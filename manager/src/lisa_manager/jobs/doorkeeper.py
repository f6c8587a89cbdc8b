"""The doorkeeper: completes changes of limits that were interrupted between the registry and the shards."""

import logging

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.errors import LisaError, Unreachable
from lisa_common.model.door import limits_of
from lisa_common.model.sharding import Layout
from lisa_manager.doors import read_limits, set_doors
from lisa_manager.jobs.discoverer import Discoverer
from lisa_manager.problem_log import ProblemLog

__all__ = ["Doorkeeper"]

logger = logging.getLogger(__name__)


class Doorkeeper:
    """Compares the doors of topics with their policies: of limited topics always, of others after a change."""

    def __init__(self, connection: AsyncConnection, discoverer: Discoverer) -> None:
        self._connection = connection
        self._discoverer = discoverer
        self._problems = ProblemLog(logger)
        self._opened: dict[str, int] = {}
        """The revisions at which topics without limits were found open."""

    async def turn(self) -> None:
        """Runs one turn over these topics."""
        layouts = [layout for layout in self._discoverer.layouts.values() if self._is_due(layout)]
        shards = [(layout, keys) for layout in layouts for keys in layout.served]
        doors = await self._connection.execute_each([read_limits(keys) for _, keys in shards]) if shards else []
        wrong = {
            layout.topic
            for (layout, keys), door in zip(shards, doors, strict=True)
            if isinstance(door, LisaError) or door != limits_of(layout, keys)
        }
        for layout in layouts:
            if layout.topic in wrong:
                await self._set(layout)
            if not layout.policy.is_limited:
                self._opened[layout.topic] = layout.policy.limits_revision

    def _is_due(self, layout: Layout) -> bool:
        revision = layout.policy.limits_revision
        return layout.policy.is_limited or (revision > 0 and self._opened.get(layout.topic) != revision)

    async def _set(self, layout: Layout) -> None:
        subject = f"limits of {layout.topic}"
        try:
            await self._connection.run(set_doors(layout.prefix, layout.topic))
        except LisaError as error:
            # One node of a Cluster may be away; the topics of the others get theirs.
            if isinstance(error, Unreachable) and self._connection.node_of(layout.shards[0]) is None:
                raise
            self._problems.report(subject, error)
        else:
            self._problems.resolve(subject)
