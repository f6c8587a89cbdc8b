"""Settles deliveries whose handlers have ended: acks and nacks, in batches, with retries."""

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple

from lisa_common.backoff import RECONNECT
from lisa_common.client.async_connection import AsyncConnection
from lisa_common.errors import OF_THE_SERVER, LisaError
from lisa_common.model.delivery import Delivery
from lisa_common.protocol.consuming import AckOutcome, Nack, NackOutcome, Postponed
from lisa_consumer.core import MAX_BATCH, Core

__all__ = ["Settler"]

logger = logging.getLogger(__name__)


class _Ended(NamedTuple):
    delivery: Delivery
    outcome: Nack | Postponed | None


class Settler:
    """Acks and nacks in batches. While one batch is on its way to the server, the next one gathers.

    A batch that fails is retried with growing delays: a short outage must not have messages handled twice. Meanwhile
    its shards are settled apart, as other shards may be at other servers.
    """

    def __init__(self, connection: AsyncConnection, core: Core, on_settled: Callable[[Delivery], None]) -> None:
        self._connection = connection
        self._core = core
        self._on_settled = on_settled
        self._ended: list[_Ended] = []
        self._apart: dict[tuple[str, str], list[_Ended]] = {}
        """Ended deliveries of each shard that is settled apart."""
        self._wake = asyncio.Event()
        self._closing = False

    def settle(self, delivery: Delivery, outcome: Nack | Postponed | None) -> None:
        """Queues a delivery whose handler has ended: to be nacked or given back, or to be acked for None."""
        self._apart.get((delivery.topic, delivery.shard), self._ended).append(_Ended(delivery, outcome))
        self._wake.set()

    def close(self) -> None:
        """Lets `run` end once everything is settled."""
        self._closing = True
        self._wake.set()

    async def run(self) -> None:
        """Settles until closed and empty."""
        async with asyncio.TaskGroup() as apart:
            while self._ended or not self._closing:
                await self._wake.wait()
                self._wake.clear()
                while self._ended:
                    batch, self._ended = self._ended[:MAX_BATCH], self._ended[MAX_BATCH:]
                    try:
                        await self._settle(batch)
                    except LisaError as error:
                        self._set_apart(batch, error, apart)

    async def _settle(self, batch: list[_Ended], *, again: bool = False) -> None:
        acks = [ended.delivery for ended in batch if ended.outcome is None]
        nacks = [(delivery, outcome) for delivery, outcome in batch if isinstance(outcome, Nack)]
        postponed = [(delivery, outcome.delay_ms) for delivery, outcome in batch if isinstance(outcome, Postponed)]
        if acks:
            _log_acks(acks, await self._connection.run(self._core.ack(acks)), again=again)
        if nacks:
            _log_nacks(nacks, await self._connection.run(self._core.nack_each(nacks)))
        if postponed:
            shut_ms: dict[str, int] = {}
            for delivery, delay_ms in postponed:
                shut_ms[delivery.topic] = max(delay_ms, shut_ms.get(delivery.topic, 0))
            await self._connection.run(self._core.release([delivery for delivery, _ in postponed], shut_ms))
        for ended in batch:
            self._on_settled(ended.delivery)

    def _set_apart(self, batch: list[_Ended], error: LisaError, apart: asyncio.TaskGroup) -> None:
        if isinstance(error, OF_THE_SERVER):
            logger.warning("cannot settle %d handled deliveries, will retry: %s", len(batch), error)
        for ended in batch:
            shard = (ended.delivery.topic, ended.delivery.shard)
            if shard not in self._apart:
                self._apart[shard] = []
                apart.create_task(self._settle_apart(shard))
            self._apart[shard].append(ended)

    async def _settle_apart(self, shard: tuple[str, str]) -> None:
        """Settles one shard by itself, until no delivery of it is left."""
        failures = 0
        while ended := self._apart[shard]:
            batch = ended[:MAX_BATCH]
            try:
                await self._settle(batch, again=True)
            except OF_THE_SERVER:
                failures += 1
                await asyncio.sleep(RECONNECT.compute(failures))
                continue
            except LisaError as error:
                logger.error(
                    "cannot settle %d deliveries of topic %s, which may come again when their leases have run out: %s",
                    *(len(batch), shard[0], error),
                )
                for each in batch:
                    self._on_settled(each.delivery)
            failures = 0
            del ended[: len(batch)]
        del self._apart[shard]


def _log_acks(deliveries: list[Delivery], outcomes: list[AckOutcome], *, again: bool) -> None:
    for delivery, outcome in zip(deliveries, outcomes, strict=True):
        if outcome is AckOutcome.STALE and not again:
            logger.warning("ack of %s was stale: its lease had run out, and a newer delivery exists", delivery)
        elif outcome is AckOutcome.LATE:
            logger.warning("ack of %s was late: its lease had run out; its retry is withdrawn", delivery)


def _log_nacks(nacks: list[tuple[Delivery, Nack]], outcomes: list[NackOutcome]) -> None:
    for (delivery, nack), outcome in zip(nacks, outcomes, strict=True):
        if outcome is NackOutcome.GARBAGE:
            logger.error("%s is garbage: %s", delivery, nack.error)
