"""Settles deliveries whose handlers have ended: acks and nacks, in batches, with retries."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import NamedTuple

from lisa_common.backoff import RECONNECT
from lisa_common.client.async_connection import AsyncConnection
from lisa_common.errors import OF_THE_SERVER, LisaError
from lisa_common.logs import event
from lisa_common.model.delivery import Delivery
from lisa_common.protocol.consuming import AckOutcome, Nack, Postponed
from lisa_consumer.core import MAX_BATCH, Core
from lisa_consumer.events import delivery_event
from lisa_consumer.failure_log import log_failure, log_unsettled

__all__ = ["Settler"]

logger = logging.getLogger(__name__)


_SLOW_S = 15.0
"""A batch that is under way for longer than this makes the worker not ready."""


class _Ended(NamedTuple):
    delivery: Delivery
    outcome: Nack | Postponed | None
    error: BaseException | None = None
    """What the handler raised."""


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
        self._began_at: float | None = None
        """When the batch that is under way began."""
        self._failure = ""
        """Why the latest batch could not be settled."""

    def find_problem(self) -> str:
        """Why this cannot settle; "" if it can."""
        began_at = self._began_at
        if began_at is not None and (age_s := time.monotonic() - began_at) > _SLOW_S:
            return f"a batch has been under way for {age_s:.0f} s"
        return self._failure if self._apart else ""

    def settle(self, delivery: Delivery, outcome: Nack | Postponed | None, error: BaseException | None = None) -> None:
        """Queues a delivery whose handler has ended: to be nacked or given back, or to be acked for None.

        `error` is what the handler raised. It is logged once the server has decided about a retry.
        """
        ended = _Ended(delivery, outcome, error)
        apart = self._apart.get((delivery.topic, delivery.shard))
        if apart is None:
            self._ended.append(ended)
        else:
            apart.append(self._log_unsettled(ended))
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
        if not again:
            self._began_at = time.monotonic()
        try:
            await self._settle_batch(batch, again=again)
        except LisaError as error:
            self._failure = str(error)
            raise
        finally:
            if not again:
                self._began_at = None

    async def _settle_batch(self, batch: list[_Ended], *, again: bool) -> None:
        acks = [ended.delivery for ended in batch if ended.outcome is None]
        nacks = [(ended.delivery, ended.outcome) for ended in batch if isinstance(ended.outcome, Nack)]
        if acks:
            _log_acks(acks, await self._connection.run(self._core.ack(acks)), again=again)
        if nacks:
            results = await self._connection.run(self._core.nack_each(nacks))
            errors = [ended.error for ended in batch if isinstance(ended.outcome, Nack)]
            for (delivery, nack), error, (outcome, due_ms) in zip(nacks, errors, results, strict=True):
                log_failure(delivery, nack, error, outcome, due_ms, of=self._max_attempts(delivery), again=again)
        if postponed := [ended for ended in batch if isinstance(ended.outcome, Postponed)]:
            await self._postpone(postponed)
        for ended in batch:
            self._on_settled(ended.delivery)

    async def _postpone(self, postponed: list[_Ended]) -> None:
        """Gives deliveries back, and shuts the doors of their topics for the longest time that a handler asked for."""
        shut_ms: dict[str, int] = {}
        for delivery, outcome, _ in postponed:
            if isinstance(outcome, Postponed):
                shut_ms[delivery.topic] = max(outcome.delay_ms, shut_ms.get(delivery.topic, 0))
        await self._connection.run(self._core.release([delivery for delivery, _, _ in postponed], shut_ms))
        for delivery, _, error in postponed:
            fields = delivery_event(
                "delivery_limited", delivery, shut_ms=shut_ms[delivery.topic], error=str(error or "")
            )
            logger.warning("gave %s back: %s", delivery, error, extra=fields)

    def _set_apart(self, batch: list[_Ended], error: LisaError, apart: asyncio.TaskGroup) -> None:
        if isinstance(error, OF_THE_SERVER):
            fields = event("settle_failed", group=self._core.group, count=len(batch), error=str(error))
            logger.warning("cannot settle %d handled deliveries, will retry: %s", len(batch), error, extra=fields)
        for ended in batch:
            shard = (ended.delivery.topic, ended.delivery.shard)
            if shard not in self._apart:
                self._apart[shard] = []
                apart.create_task(self._settle_apart(shard))
            self._apart[shard].append(self._log_unsettled(ended))

    def _max_attempts(self, delivery: Delivery) -> int | None:
        """How often the message may be delivered, by its own limit or the policy by which it is nacked."""
        if delivery.max_retries is not None:
            return delivery.max_retries + 1
        layout = self._core.topics.recall(delivery.topic)
        return layout.policy.max_retries + 1 if layout else None

    def _log_unsettled(self, ended: _Ended) -> _Ended:
        """Logs a failure that is not settled yet: this process may end before it can settle it."""
        if isinstance(ended.outcome, Nack):
            log_unsettled(ended.delivery, ended.outcome, ended.error, of=self._max_attempts(ended.delivery))
        return ended._replace(error=None)

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
                place = {"topic": shard[0], "shard": shard[1], "group": self._core.group}
                logger.error(
                    "cannot settle %d deliveries of topic %s, which may come again when their leases have run out: %s",
                    *(len(batch), shard[0], error),
                    extra=event("deliveries_unsettled", **place, count=len(batch), error=str(error)),
                )
                for each in batch:
                    self._on_settled(each.delivery)
            failures = 0
            del ended[: len(batch)]
        del self._apart[shard]


def _log_acks(deliveries: list[Delivery], outcomes: list[AckOutcome], *, again: bool) -> None:
    for delivery, outcome in zip(deliveries, outcomes, strict=True):
        if outcome is AckOutcome.STALE and not again:
            text = "ack of %s was stale: its lease had run out, and a newer delivery exists"
            logger.warning(text, delivery, extra=delivery_event("ack_stale", delivery))
        elif outcome is AckOutcome.LATE:
            text = "ack of %s was late: its lease had run out; its retry is withdrawn"
            logger.warning(text, delivery, extra=delivery_event("ack_late", delivery))
