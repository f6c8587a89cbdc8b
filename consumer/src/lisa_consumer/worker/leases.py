"""Renews the leases of the deliveries that a worker holds."""

import asyncio
import logging
import math
import time
from collections import defaultdict
from collections.abc import Awaitable, Collection, Iterable

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.errors import LisaError, OutcomeUnknown
from lisa_common.logs import event
from lisa_consumer.delivery.core import Core
from lisa_consumer.events import delivery_event
from lisa_consumer.metrics import METRICS
from lisa_consumer.worker.held import HeldDelivery, State

__all__ = ["Leases"]

logger = logging.getLogger(__name__)

_RENEWALS = 3
"""Renewals within one visibility timeout: if one fails, the next still comes in time."""

_REPLY_S = 1.0
"""Shortest time limit for a reply: a slow link must not count as a dead one, however short the leases are."""

_GRACE_S = 1.0
"""How long after its timeout a handler may take to end: a coroutine that is cancelled then may have to tidy up."""


class Leases:
    """The deliveries that a worker holds, from reading to settling, and until when their leases surely last."""

    def __init__(self, connection: AsyncConnection, core: Core) -> None:
        self._connection = connection
        self._core = core
        self._held: dict[tuple[str, str, str], HeldDelivery] = {}
        """By place: what is settled does not begin again, if its server has delivered it twice."""
        self._visibility: dict[str, float] = {}
        self._under_way: set[tuple[str, str]] = set()
        """Topics and shards whose leases are being renewed."""
        self._reported: set[str] = set()
        """Errors that were logged since the last round, as many shards share a server."""

    def hold(self, held: Iterable[HeldDelivery]) -> None:
        """Adds deliveries that were read."""
        self._held |= {each.place: each for each in held}

    def drop(self, held: Iterable[HeldDelivery]) -> None:
        """Removes deliveries that were settled or released."""
        pop = self._held.pop
        for each in held:
            pop(each.place, None)

    @property
    def held(self) -> list[HeldDelivery]:
        """All of them, in the order in which they were read."""
        return list(self._held.values())

    def visibility_s(self, topic: str) -> float:
        """How long the leases of a topic last without a renewal; infinite while that is unknown."""
        return self._visibility.get(topic, math.inf)

    def begin(self, held: HeldDelivery, timeout_s: float | None) -> bool:
        """Whether the lease surely still lasts, so that the handler may begin.

        The lease is no longer renewed once the handler has run for longer than `timeout_s`.
        """
        if held.place not in self._held:
            return False
        now = time.monotonic()
        if now - held.renewed_at > self._visibility.get(held.delivery.topic, 0):
            METRICS.count("lisa_leases_lost_total")
            return False
        if timeout_s is not None:
            held.give_up_at = now + timeout_s
        return True

    async def run(self, topics: Collection[str]) -> None:
        """Renews leases until cancelled. `topics` may change meanwhile."""
        async with asyncio.TaskGroup() as renewing:
            renewing.create_task(self._keep_learning(topics))
            while True:
                self._reported.clear()
                self._renew(renewing)
                await asyncio.sleep(self.pause_s)

    async def _keep_learning(self, topics: Collection[str]) -> None:
        # Separate from renewals, as another server may hold the registry.
        while True:
            await self._warn_of(self._limit(self.learn(topics)))
            await asyncio.sleep(self.pause_s)

    async def _warn_of(self, asking: Awaitable[LisaError | None]) -> None:
        if (error := await asking) and str(error) not in self._reported:
            self._reported.add(str(error))
            # A worker that holds nothing has nothing to lose; its reader reports that the server is away.
            log = logger.warning if self._held else logger.debug
            log("cannot renew leases: %s", error, extra=event("renewal_failed", error=str(error)))

    @property
    def pause_s(self) -> float:
        """The pause between two rounds: half the age at which a lease is renewed."""
        return min(self._visibility.values(), default=1.0) / _RENEWALS / 2

    async def _limit(self, asking: Awaitable[None]) -> LisaError | None:
        """The error of a request, if any. Its time limit leaves time for a retry when the link has silently died."""
        limit_s = max(self.pause_s, _REPLY_S)
        try:
            async with asyncio.timeout(limit_s):
                await asking
        except TimeoutError:
            return OutcomeUnknown(f"no reply within {limit_s:g} s")
        except LisaError as error:
            return error
        return None

    async def learn(self, topics: Collection[str]) -> None:
        """Reads the visibility timeouts of topics: how long their leases last without a renewal."""
        known = await self._connection.run(self._core.visibilities_s(list(topics)))
        # Topics may have been added meanwhile, by another call, and others removed.
        self._visibility |= {topic: seconds for topic, seconds in known.items() if topic in topics}

    def forget(self, topic: str) -> None:
        """Forgets a topic. Call it once none of its deliveries is held."""
        self._visibility.pop(topic, None)

    def _renew(self, renewing: asyncio.TaskGroup) -> None:
        """Starts to renew the leases that are due, each shard in its own task, as the server of one may be away."""
        now = time.monotonic()
        due: dict[tuple[str, str], list[HeldDelivery]] = defaultdict(list)
        for held in self._held.values():
            if held.give_up_at is not None and now > held.give_up_at + _GRACE_S:
                self._report_overrun(held)
            shard = (held.delivery.topic, held.delivery.shard)
            if shard not in self._under_way and self._is_due(held, now):
                due[shard].append(held)
        for shard, of_shard in due.items():
            self._under_way.add(shard)
            renewing.create_task(self._renew_shard(shard, of_shard, now))

    def _is_due(self, held: HeldDelivery, now: float) -> bool:
        if now - held.renewed_at < self._visibility.get(held.delivery.topic, 0) / _RENEWALS:
            return False
        return held.state is State.SETTLING or held.give_up_at is None or held.give_up_at >= now

    async def _renew_shard(self, shard: tuple[str, str], of_shard: list[HeldDelivery], now: float) -> None:
        try:
            await self._warn_of(self._limit(self._extend(of_shard, now)))
        finally:
            self._under_way.discard(shard)

    async def _extend(self, of_shard: list[HeldDelivery], now: float) -> None:
        # In one round trip, however many these are: on a slow link there is time for no more.
        extended = await self._connection.run(self._core.extend([held.delivery for held in of_shard]))
        for held, is_kept in zip(of_shard, extended, strict=True):
            if is_kept:
                held.renewed_at = now
            elif self._held.pop(held.place, None):
                self._report_loss(held)

    def _report_loss(self, held: HeldDelivery) -> None:
        if held.may_be_aborted:
            text = "lost the lease of %s: another consumer may have it"
            logger.warning(text, held.delivery, extra=delivery_event("lease_lost", held.delivery))
            METRICS.count("lisa_leases_lost_total")

    def _report_overrun(self, held: HeldDelivery) -> None:
        if held.overran or not held.is_running:
            return
        held.overran = True
        text = "the handler of %s still runs after its timeout: its lease is not renewed, so it may run again elsewhere"
        logger.warning(text, held.delivery, extra=delivery_event("handler_overran", held.delivery))
        METRICS.count("lisa_handler_overruns_total", held.delivery.topic, held.delivery.group)
