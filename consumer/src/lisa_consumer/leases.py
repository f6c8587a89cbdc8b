"""Keeps the leases of what a worker has in hand."""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable
from dataclasses import dataclass

from lisa_common.aio import AsyncConnection
from lisa_common.delivery import Delivery
from lisa_common.errors import LisaError, OutcomeUnknown
from lisa_consumer.core import MAX_BATCH, Core

__all__ = ["Leases"]

logger = logging.getLogger(__name__)

_RENEWALS = 3
"""Renewals within one visibility timeout: one may fail, and the next still comes in time."""

_ANSWER_S = 1.0
"""How long an answer may take at least: a link that is this slow is no dead one, however short the leases are."""


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
            lease.give_up = None

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
            errors = [await self._in_time(self.learn(topics)), *await self._renew()]
            for complaint in {str(error) for error in errors if error}:
                logger.warning("leases could not be renewed: %s", complaint)
            await asyncio.sleep(self._pause_s())

    def _pause_s(self) -> float:
        """Between two looks at what is to be renewed, twice in the time after which anything is."""
        return min(self._visibility.values(), default=1.0) / _RENEWALS / 2

    async def _in_time(self, asking: Awaitable[None]) -> LisaError | None:
        """The error that asking met. Over a link which has died in silence it must leave time for the next try."""
        limit_s = max(self._pause_s(), _ANSWER_S)
        try:
            async with asyncio.timeout(limit_s):
                await asking
        except TimeoutError:
            return OutcomeUnknown(f"no answer within {limit_s:g} s")
        except LisaError as error:
            return error
        return None

    async def learn(self, topics: list[str]) -> None:
        """Reads the visibility timeouts, which decide how long a lease is ours."""
        self._visibility = await self._connection.run(self._core.visibilities_s(topics))

    async def _renew(self) -> list[LisaError | None]:
        now = time.monotonic()
        due: dict[tuple[str, str], list[_Lease]] = defaultdict(list)
        for lease in self._leases.values():
            topic = lease.delivery.topic
            if now - lease.renewed >= self._visibility[topic] / _RENEWALS and (lease.give_up or now) >= now:
                due[topic, lease.delivery.shard].append(lease)
        # Each shard by itself: the server of one may be away.
        return await asyncio.gather(*(self._in_time(self._extend(leases, now)) for leases in due.values()))

    async def _extend(self, leases: list[_Lease], now: float) -> None:
        for at in range(0, len(leases), MAX_BATCH):
            batch = leases[at : at + MAX_BATCH]
            kept = await self._connection.run(self._core.extend([lease.delivery for lease in batch]))
            for lease, ours in zip(batch, kept, strict=True):
                if ours:
                    lease.renewed = now
                elif self._leases.pop(lease.delivery.place, None) and not lease.ending:
                    logger.warning("the lease of %s is lost: another consumer may have it", lease.delivery)
