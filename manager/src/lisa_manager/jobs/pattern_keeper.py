"""The pattern keeper: completes changes of policies of patterns, and applies them to topics of older programs."""

import asyncio
import logging

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.errors import LisaError
from lisa_common.logs import event
from lisa_common.model.pattern_policies import PatternPolicies
from lisa_common.model.sharding import Layout
from lisa_manager.jobs.discoverer import Discoverer
from lisa_manager.jobs.policy_changes import PolicyChanges
from lisa_manager.pattern_policies import Resolved, apply_patterns, is_stale
from lisa_manager.problem_log import ProblemLog

__all__ = ["PatternKeeper"]

logger = logging.getLogger(__name__)

_AT_ONCE = 100


class PatternKeeper:
    """Compares the policies of topics with those of patterns, after each change of either."""

    def __init__(self, connection: AsyncConnection, discoverer: Discoverer, prefix: str) -> None:
        self._connection, self._discoverer = connection, discoverer
        self._changes = PolicyChanges(discoverer, lambda _: False)
        self._prefix = prefix
        self._problems = ProblemLog(logger)
        self._patterns: bytes | None = None

    async def turn(self) -> None:
        """Runs one turn over the topics. Raises LisaError as the server answers, and for damaged policies."""
        stored = self._discoverer.patterns
        policies = PatternPolicies.load(stored)
        if stored != self._patterns:
            self._patterns = stored
            self._changes.begin_again()
        changed = self._changes.take()
        stale = []
        for position, layout in enumerate(changed):
            if position % _AT_ONCE == 0:
                # There may be thousands of topics, and the other jobs must not wait for all of them.
                await asyncio.sleep(0)
            if self._is_stale(policies, layout):
                stale.append(layout.topic)
        resolved = await self._connection.run(apply_patterns(self._prefix, stale))
        self._log(resolved)
        for layout in changed:
            if layout.topic not in resolved.failed:
                self._changes.end(layout)

    def _log(self, resolved: Resolved) -> None:
        for topic, error in resolved.failed.items():
            self._problems.report(f"policies of patterns for {topic}", error, job="patterns", topic=topic)
        for topic in resolved.changed - resolved.failed.keys():
            self._problems.resolve(f"policies of patterns for {topic}")
        if resolved.changed:
            fields = event("patterns_applied", count=len(resolved.changed))
            logger.info("applied policies of patterns to %d topics", len(resolved.changed), extra=fields)

    def _is_stale(self, policies: PatternPolicies, layout: Layout) -> bool:
        try:
            return is_stale(policies, layout.topic, layout.policy)
        except LisaError:
            # To be reported.
            return True
