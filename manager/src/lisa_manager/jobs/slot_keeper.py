"""The slot keeper: sees to it that no key stays blocked, whatever programs or damage have left behind."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.errors import LisaError
from lisa_common.model.keys import ShardKeys
from lisa_common.model.scores import PARKED_MS
from lisa_common.protocol import managing
from lisa_common.protocol.call import Call, command
from lisa_manager.jobs.discoverer import Discoverer
from lisa_manager.jobs.policy_changes import PolicyChanges
from lisa_manager.problem_log import ProblemLog
from lisa_manager.queries import PAGE, chunks
from lisa_manager.topic_limits import read_limits

__all__ = ["SlotKeeper"]

logger = logging.getLogger(__name__)

_SHARE = 20
"""A turn looks at so many pages of a shard, unless something is wrong on one of them."""


@dataclass(slots=True)
class _Pass:
    """A pass over the slots of a shard. It may take several turns."""

    limits: str
    """The limits of the shard when the pass began."""
    cursor: bytes = b""
    is_urgent: bool = True
    """Whether one turn must complete the pass: it is the first under these limits, so messages that
    they let go may still be parked; or it has found a fault."""


class SlotKeeper:
    """Tidies slots: of topics that limit them always, of others after a change, and while they have any."""

    def __init__(self, connection: AsyncConnection, discoverer: Discoverer) -> None:
        self._connection = connection
        self._problems = ProblemLog(logger)
        self._changes = PolicyChanges(discoverer, lambda policy: policy.max_in_flight_per_key)
        self._passes: dict[ShardKeys, _Pass] = {}
        """The passes of shards that limit slots, or hold any."""

    async def turn(self) -> None:
        """Runs one turn."""
        layouts = self._changes.take()
        self._passes = {keys: current for keys, current in self._passes.items() if self._is_served(keys)}
        shards = list({keys: None for layout in layouts for keys in layout.served} | dict.fromkeys(self._passes))
        for page in chunks(shards, PAGE):
            for keys, limits, has_slots in await self._look(page):
                await self._turn_to(keys, limits, has_slots=has_slots)
        # Only now: an error has the next turn look again.
        for layout in layouts:
            self._changes.end(layout)

    def _is_served(self, keys: ShardKeys) -> bool:
        layout = self._changes.layouts.get(keys.topic)
        return layout is not None and keys in layout.served

    async def _turn_to(self, keys: ShardKeys, limits: str, *, has_slots: bool) -> None:
        current = self._passes.pop(keys, None)
        if current is None or current.limits != limits:
            current = _Pass(limits)
        if has_slots or limits:
            self._passes[keys] = current
        if has_slots:
            await self._tidy(keys, current)
        else:
            current.cursor, current.is_urgent = b"", False

    async def _look(self, shards: Sequence[ShardKeys]) -> list[tuple[ShardKeys, str, bool]]:
        """The limits of shards, and whether slots are taken or waited for there. Where that is unknown, they may be."""
        # The door, and not the policy: scripts go by it, and this manager may know a policy later.
        replies = await self._connection.execute_each([call for keys in shards for call in _calls(keys)])
        looks = zip(shards, zip(*[iter(replies)] * 4, strict=True), strict=True)
        return [
            (keys, str(limits), any(isinstance(count, LisaError) or count for count in counts))
            for keys, (limits, *counts) in looks
        ]

    async def _tidy(self, keys: ShardKeys, current: _Pass) -> None:
        left = _SHARE
        # A node of a Cluster may be away, or a key be of another type; the other topics are tidied.
        with self._problems.watching(f"slots of {keys.tag}"):
            while left > 0 or current.is_urgent:
                # One call for each page, so that the server comes to other programs in between.
                current.cursor, count = await self._connection.call(
                    managing.tidy_slots(keys, current.cursor, mend=True)
                )
                left -= 1
                current.is_urgent = bool(current.cursor) and (current.is_urgent or count > 0)
                if not current.cursor:
                    break


def _calls(keys: ShardKeys) -> Iterator[Call[Any]]:
    yield read_limits(keys)
    yield command("EXISTS", keys.of("busy"), keys.of("slots"), keys.of("parked"))
    # Where all three are lost, nothing else tells that messages wait.
    for name in ("waiting", "retry"):
        yield command("ZCOUNT", keys.of(name), PARKED_MS, f"({2 * PARKED_MS}")
