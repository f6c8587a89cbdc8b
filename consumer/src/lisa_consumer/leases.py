"""Keeps the leases of what a worker has in hand."""

import asyncio
import logging
import time
from collections import defaultdict
from dataclasses import dataclass

from lisa_common.aio import AsyncConnection
from lisa_common.delivery import Delivery
from lisa_common.errors import LisaError
from lisa_consumer.core import MAX_BATCH, Core

__all__ = ["Leases"]

logger = logging.getLogger(__name__)

_RENEWALS = 3
"""Renewals within one visibility timeout: one may fail, and the next still comes in time."""


@dataclass(slots=True)
class _Lease:
    delivery: Delivery
    renewed: float
    give_up: float | None = None
    ending: bool = False


class Leases:
    """The deliveries in hand, from reading to settling, and until when each lease is surely ours."""

    def __init__(self, connection: AsyncConnection, core: Core) -> None:
        self._connection = connection
        self._core = core
        self._leases: dict[tuple[str, str, str], _Lease] = {}
        self._visibility: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._leases)

    def hold(self, deliveries: list[Delivery]) -> None:
        """Takes what was read just now."""
        now = time.monotonic()
        for delivery in deliveries:
            self._leases[delivery.place] = _Lease(delivery, now)

    def drop(self, delivery: Delivery) -> None:
        """Lets go of what was settled or given back."""
        self._leases.pop(delivery.place, None)

    def end(self, delivery: Delivery) -> None:
        """Notes that the handler has ended: the lease is renewed until the server knows, but may end any moment."""
        if lease := self._leases.get(delivery.place):
            lease.ending = True

    def begin(self, delivery: Delivery, timeout_s: float | None) -> bool:
        """Whether the lease is surely still ours, so that its handler may begin.

        The lease is not renewed any more once the handler has run for longer than its timeout.
        """
        lease = self._leases.get(delivery.place)
        if lease is None or time.monotonic() - lease.renewed > self._visibility.get(delivery.topic, 0):
            return False
        if timeout_s is not None:
            lease.give_up = time.monotonic() + timeout_s
        return True

    async def run(self, topics: list[str]) -> None:
        """Renews leases until cancelled."""
        while True:
            try:
                await self.learn(topics)
                await self._renew()
            except LisaError as error:
                logger.warning("leases could not be renewed: %s", error)
            await asyncio.sleep(min(self._visibility.values(), default=1.0) / _RENEWALS / 2)

    async def learn(self, topics: list[str]) -> None:
        """Reads the visibility timeouts, which decide how long a lease is ours."""
        self._visibility = await self._connection.run(self._core.visibilities_s(topics))

    async def _renew(self) -> None:
        now = time.monotonic()
        due: dict[tuple[str, str], list[_Lease]] = defaultdict(list)
        for lease in self._leases.values():
            topic = lease.delivery.topic
            if now - lease.renewed >= self._visibility[topic] / _RENEWALS and (lease.give_up or now) >= now:
                due[topic, lease.delivery.shard].append(lease)
        # Each shard by itself: the server of one may be away.
        errors = await asyncio.gather(*(self._renew_shard(leases, now) for leases in due.values()))
        for complaint in {str(error) for error in errors if error}:
            logger.warning("leases could not be renewed: %s", complaint)

    async def _renew_shard(self, leases: list[_Lease], now: float) -> LisaError | None:
        try:
            await self._extend(leases, now)
        except LisaError as error:
            return error
        return None

    async def _extend(self, leases: list[_Lease], now: float) -> None:
        for at in range(0, len(leases), MAX_BATCH):
            batch = leases[at : at + MAX_BATCH]
            kept = await self._connection.run(self._core.extend([lease.delivery for lease in batch]))
            for lease, ours in zip(batch, kept, strict=True):
                if ours:
                    lease.renewed = now
                elif self._leases.pop(lease.delivery.place, None) and not lease.ending:
                    logger.warning("the lease of %s is lost: another consumer may have it", lease.delivery)
