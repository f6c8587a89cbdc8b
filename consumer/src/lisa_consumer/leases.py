"""Renews the leases of the deliveries that a worker holds."""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Collection, Iterable
from dataclasses import dataclass

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.errors import LisaError, OutcomeUnknown
from lisa_common.logs import event
from lisa_common.model.delivery import Delivery
from lisa_consumer.core import MAX_BATCH, Core
from lisa_consumer.events import delivery_event
from lisa_consumer.metrics import METRICS

__all__ = ["Leases"]

logger = logging.getLogger(__name__)

_RENEWALS = 3
"""Renewals within one visibility timeout: if one fails, the next still comes in time."""

_REPLY_S = 1.0
"""Shortest time limit for a reply: a slow link must not count as a dead one, however short the leases are."""


@dataclass(slots=True)
class _Lease:
    delivery: Delivery
    renewed: float
    give_up: float | None = None
    ending: bool = False


class Leases:
    """The deliveries that a worker holds, from reading to settling, and until when their leases surely last."""

    def __init__(self, connection: AsyncConnection, core: Core) -> None:
        self._connection = connection
        self._core = core
        self._leases: dict[tuple[str, str, str], _Lease] = {}
        self._visibility: dict[str, float] = {}
        self._under_way: set[tuple[str, str]] = set()
        """Topics and shards whose leases are being renewed."""
        self._reported: set[str] = set()
        """Errors that were logged since the last round, as many shards share a server."""

    def hold(self, deliveries: list[Delivery], leased_at: float) -> None:
        """Adds deliveries that were read. Their leases began at `leased_at` or later, by the monotonic clock."""
        for delivery in deliveries:
            self._leases[delivery.place] = _Lease(delivery, leased_at)

    def drop(self, deliveries: Iterable[Delivery]) -> None:
        """Removes deliveries that were settled or released."""
        for delivery in deliveries:
            self._leases.pop(delivery.place, None)

    def end(self, delivery: Delivery) -> None:
        """Takes a delivery whose handler has ended. Its lease is renewed until it is settled, and may end before."""
        if lease := self._leases.get(delivery.place):
            lease.ending = True
            lease.give_up = None

    def begin(self, delivery: Delivery, timeout_s: float | None) -> bool:
        """Whether the lease surely still lasts, so that the handler may begin.

        The lease is no longer renewed once the handler has run for longer than `timeout_s`.
        """
        lease = self._leases.get(delivery.place)
        if lease is None:
            return False
        if time.monotonic() - lease.renewed > self._visibility.get(delivery.topic, 0):
            METRICS.count("lisa_leases_lost_total")
            return False
        if timeout_s is not None:
            lease.give_up = time.monotonic() + timeout_s
        return True

    async def run(self, topics: Collection[str]) -> None:
        """Renews leases until cancelled. `topics` may change meanwhile."""
        async with asyncio.TaskGroup() as renewing:
            renewing.create_task(self._keep_learning(topics))
            while True:
                self._reported.clear()
                self._renew(renewing)
                await asyncio.sleep(self._pause_s())

    async def _keep_learning(self, topics: Collection[str]) -> None:
        # Separate from renewals, as another server may hold the registry.
        while True:
            await self._warn_of(self._limit(self.learn(list(topics))))
            await asyncio.sleep(self._pause_s())

    async def _warn_of(self, asking: Awaitable[LisaError | None]) -> None:
        if (error := await asking) and str(error) not in self._reported:
            self._reported.add(str(error))
            # A worker that holds nothing has nothing to lose; its reader reports that the server is away.
            log = logger.warning if self._leases else logger.debug
            log("cannot renew leases: %s", error, extra=event("renewal_failed", error=str(error)))

    def _pause_s(self) -> float:
        """The pause between two rounds: half the age at which a lease is renewed."""
        return min(self._visibility.values(), default=1.0) / _RENEWALS / 2

    async def _limit(self, asking: Awaitable[None]) -> LisaError | None:
        """The error of a request, if any. Its time limit leaves time for a retry when the link has silently died."""
        limit_s = max(self._pause_s(), _REPLY_S)
        try:
            async with asyncio.timeout(limit_s):
                await asking
        except TimeoutError:
            return OutcomeUnknown(f"no reply within {limit_s:g} s")
        except LisaError as error:
            return error
        return None

    async def learn(self, topics: list[str]) -> None:
        """Reads the visibility timeouts of topics: how long their leases last without a renewal."""
        # Topics may have been added meanwhile, by another call.
        self._visibility |= await self._connection.run(self._core.visibilities_s(topics))

    def _renew(self, renewing: asyncio.TaskGroup) -> None:
        """Starts to renew the leases that are due, each shard in its own task, as the server of one may be away."""
        now = time.monotonic()
        due: dict[tuple[str, str], list[_Lease]] = defaultdict(list)
        for lease in self._leases.values():
            shard = (lease.delivery.topic, lease.delivery.shard)
            if shard not in self._under_way and self._is_due(lease, now):
                due[shard].append(lease)
        for shard, leases in due.items():
            self._under_way.add(shard)
            renewing.create_task(self._renew_shard(shard, leases, now))

    def _is_due(self, lease: _Lease, now: float) -> bool:
        visibility = self._visibility.get(lease.delivery.topic, 0)
        return now - lease.renewed >= visibility / _RENEWALS and (lease.give_up or now) >= now

    async def _renew_shard(self, shard: tuple[str, str], leases: list[_Lease], now: float) -> None:
        try:
            await self._warn_of(self._limit(self._extend(leases, now)))
        finally:
            self._under_way.discard(shard)

    async def _extend(self, leases: list[_Lease], now: float) -> None:
        for at in range(0, len(leases), MAX_BATCH):
            batch = leases[at : at + MAX_BATCH]
            kept = await self._connection.run(self._core.extend([lease.delivery for lease in batch]))
            for lease, is_kept in zip(batch, kept, strict=True):
                if is_kept:
                    lease.renewed = now
                elif self._leases.pop(lease.delivery.place, None) and not lease.ending:
                    text = "lost the lease of %s: another consumer may have it"
                    logger.warning(text, lease.delivery, extra=delivery_event("lease_lost", lease.delivery))
                    METRICS.count("lisa_leases_lost_total")
