"""Settles what handlers have ended: acks and nacks, in batches, until the server has taken them."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

from lisa_common.aio import AsyncConnection
from lisa_common.delivery import Delivery
from lisa_common.errors import OF_THE_SERVER, LisaError
from lisa_common.protocol.consuming import AckOutcome, Nack, NackOutcome
from lisa_common.server import RECONNECT
from lisa_consumer.core import MAX_BATCH, Core

__all__ = ["Settler"]

logger = logging.getLogger(__name__)


class _Ended(NamedTuple):
    delivery: Delivery
    nack: Nack | None


class Settler:
    """While one batch is on its way to the server, the next one gathers: batches grow with the load.

    What the server does not take is tried again, with growing delays: a handled message is not to be handled again
    because the server was away for a moment.
    """

    def __init__(self, connection: AsyncConnection, core: Core, on_settled: Callable[[Delivery], None]) -> None:
        self._connection = connection
        self._core = core
        self._on_settled = on_settled
        self._ended: list[_Ended] = []
        self._wake = asyncio.Event()
        self._closing = False

    def settle(self, delivery: Delivery, nack: Nack | None) -> None:
        """Takes a delivery whose handler has ended: an ack, unless it is to be given up."""
        self._ended.append(_Ended(delivery, nack))
        self._wake.set()

    def close(self) -> None:
        """Lets `run` end once all is settled."""
        self._closing = True
        self._wake.set()

    async def run(self) -> None:
        """Settles until closed and empty."""
        while self._ended or not self._closing:
            await self._wake.wait()
            self._wake.clear()
            while self._ended:
                batch, self._ended = self._ended[:MAX_BATCH], self._ended[MAX_BATCH:]
                await self._settle(batch)
                for ended in batch:
                    self._on_settled(ended.delivery)

    async def _settle(self, batch: list[_Ended], *, again: bool = False) -> None:
        acks = [ended.delivery for ended in batch if ended.nack is None]
        nacks = [(ended.delivery, ended.nack) for ended in batch if ended.nack is not None]
        failures = 0
        while acks or nacks:
            try:
                if acks:
                    _tell_acks(acks, await self._connection.run(self._core.ack(acks)), again=again or failures > 0)
                    acks = []
                if nacks:
                    _tell_nacks(nacks, await self._connection.run(self._core.nack_each(nacks)))
                    nacks = []
            except OF_THE_SERVER as error:
                failures += 1
                if failures == 1:
                    logger.warning("%d handled deliveries wait for the server: %s", len(acks) + len(nacks), error)
                await asyncio.sleep(RECONNECT.compute(failures))
            except LisaError as error:
                await self._settle_apart(batch, error)
                return

    async def _settle_apart(self, batch: list[_Ended], error: LisaError) -> None:
        """Settles each topic by itself, so that one that cannot be settled does not hold up the others."""
        by_topic: dict[str, list[_Ended]] = defaultdict(list)
        for ended in batch:
            by_topic[ended.delivery.topic].append(ended)
        if len(by_topic) > 1:
            for of_topic in by_topic.values():
                await self._settle(of_topic, again=True)
            return
        for topic, of_topic in by_topic.items():
            logger.error(
                "%d deliveries of %s cannot be settled: %s; if they come again, it is when their leases have run out",
                *(len(of_topic), topic, error),
            )


def _tell_acks(deliveries: list[Delivery], outcomes: list[AckOutcome], *, again: bool) -> None:
    for delivery, outcome in zip(deliveries, outcomes, strict=True):
        if outcome is AckOutcome.STALE and not again:
            logger.warning("ack of %s was stale: its lease had run out, and a newer delivery exists", delivery)
        elif outcome is AckOutcome.LATE:
            logger.warning("ack of %s was late: its lease had run out; its retry is withdrawn", delivery)


def _tell_nacks(nacks: list[tuple[Delivery, Nack]], outcomes: list[NackOutcome]) -> None:
    for (delivery, nack), outcome in zip(nacks, outcomes, strict=True):
        if outcome is NackOutcome.GARBAGE:
            logger.error("%s is garbage: %s", delivery, nack.error)
