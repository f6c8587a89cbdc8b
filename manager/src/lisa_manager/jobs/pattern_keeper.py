"""The pattern keeper: completes changes of policies of patterns, and applies them to topics of older programs."""

import logging

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.errors import LisaError
from lisa_common.logs import event
from lisa_common.model.keys import PATTERNS, topics_key
from lisa_common.model.pattern_policies import PatternPolicies
from lisa_common.model.sharding import Layout
from lisa_common.protocol.call import command
from lisa_manager.jobs.discoverer import Discoverer
from lisa_manager.pattern_policies import apply_patterns, is_stale
from lisa_manager.problem_log import ProblemLog

__all__ = ["PatternKeeper"]

logger = logging.getLogger(__name__)


class PatternKeeper:
    """Compares the policies of topics with those of patterns, after each change of either."""

    def __init__(self, connection: AsyncConnection, discoverer: Discoverer, prefix: str) -> None:
        self._connection = connection
        self._discoverer = discoverer
        self._prefix = prefix
        self._problems = ProblemLog(logger)
        self._seen: tuple[bytes | None, object] = (None, None)

    async def turn(self) -> None:
        """Runs one turn over the topics. Raises LisaError as the server answers, and for damaged policies."""
        layouts = self._discoverer.layouts
        stored: bytes | None = await self._connection.call(command("HGET", topics_key(self._prefix), PATTERNS))
        # The discoverer makes new layouts when the registry has changed.
        if self._seen[0] == stored and self._seen[1] is layouts:
            return
        policies = PatternPolicies.load(stored)
        stale = [layout.topic for layout in layouts.values() if self._is_stale(policies, layout)]
        resolved = await self._connection.run(apply_patterns(self._prefix, stale))
        for topic, error in resolved.failed.items():
            self._problems.report(f"policies of patterns for {topic}", error, job="patterns", topic=topic)
        for topic in resolved.changed - resolved.failed.keys():
            self._problems.resolve(f"policies of patterns for {topic}")
        if resolved.changed:
            fields = event("patterns_applied", count=len(resolved.changed))
            logger.info("applied policies of patterns to %d topics", len(resolved.changed), extra=fields)
        self._seen = (stored, layouts)

    def _is_stale(self, policies: PatternPolicies, layout: Layout) -> bool:
        try:
            return is_stale(policies, layout.topic, layout.policy)
        except LisaError:
            # To be reported.
            return True
