"""Settles deliveries whose handlers have ended: acks and nacks, in batches, with retries."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from lisa_common.backoff import RECONNECT
from lisa_common.client.async_connection import AsyncConnection
from lisa_common.errors import OF_THE_SERVER, LisaError
from lisa_common.escaping import safe_text
from lisa_common.logs import event
from lisa_common.model.delivery import Delivery
from lisa_common.protocol.consuming import AckOutcome, Nack, Postponed
from lisa_consumer.core import MAX_BATCH, Core
from lisa_consumer.events import delivery_event
from lisa_consumer.failure_log import log_failure, log_unsettled
from lisa_consumer.held_delivery import HeldDelivery, postponed_ms

__all__ = ["Settler"]

logger = logging.getLogger(__name__)


_AMPLE, _GATHER_S = 512, 0.004
"""A batch gathers while handlers end one after another, until it has as many deliveries or for so long."""

_SLOW_S = 15.0
"""A batch that is under way for longer than this makes the worker not ready."""


class Settler:
    """Acks and nacks in batches. While one batch is on its way to the server, the next one gathers.

    A batch that fails is retried with growing delays: a short outage must not have messages handled twice. Meanwhile
    its shards are settled apart, as other shards may be at other servers.
    """

    def __init__(
        self, connection: AsyncConnection, core: Core, on_settled: Callable[[list[HeldDelivery]], None]
    ) -> None:
        self._connection = connection
        self._core = core
        self._on_settled = on_settled
        self._handled: list[HeldDelivery] = []
        self._apart: dict[tuple[str, str], list[HeldDelivery]] = {}
        """Ended deliveries of each shard that is settled apart."""
        self._wake = asyncio.Event()
        self._closing = False
        self._hurries = False
        """Whether the next batch goes out without a wait for others."""
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

    def settle(self, ended: Sequence[HeldDelivery], *, at_once: bool = False) -> None:
        """Queues deliveries whose handlers have ended; `at_once` if these must not wait for others."""
        self._hurries |= at_once
        for handled in ended:
            handled.has_ended = True
        if self._apart:
            ended = [handled for handled in ended if not self._add_apart(handled)]
        if ended:
            self._handled += ended
            self._wake.set()

    def _add_apart(self, handled: HeldDelivery) -> bool:
        """Adds a delivery to those of its shard, if that is settled apart. Result: whether it is."""
        apart = self._apart.get((handled.delivery.topic, handled.delivery.shard))
        if apart is None:
            return False
        apart.append(self._log_unsettled(handled))
        return True

    def close(self) -> None:
        """Lets `run` end once everything is settled."""
        self._closing = self._hurries = True
        self._wake.set()

    async def run(self) -> None:
        """Settles until closed and empty."""
        async with asyncio.TaskGroup() as apart:
            while self._handled or not self._closing:
                await self._wake.wait()
                self._wake.clear()
                while self._handled:
                    await self._let_gather()
                    await self._settle_next(apart)

    async def _let_gather(self) -> None:
        """Waits while more handlers end in every wave: one call for many takes less than several for a few each."""
        until = time.monotonic() + _GATHER_S
        before = 0
        while before < len(self._handled) < _AMPLE and not self._hurries and time.monotonic() < until:
            before = len(self._handled)
            # In one turn of the event loop others begin, and in the next one they end, if they are quick.
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    async def _settle_next(self, apart: asyncio.TaskGroup) -> None:
        batch, self._handled = self._handled[:MAX_BATCH], self._handled[MAX_BATCH:]
        self._hurries = False
        try:
            await self._settle(batch)
        except LisaError as error:
            self._set_apart(batch, error, apart)

    async def _settle(self, batch: list[HeldDelivery], *, again: bool = False) -> None:
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

    async def _settle_batch(self, batch: list[HeldDelivery], *, again: bool) -> None:
        if acks := [handled for handled in batch if handled.outcome is None]:
            outcomes = await self._connection.run(self._core.ack([handled.delivery for handled in acks]))
            acks = _judge_acks(acks, outcomes, again=again)
        if len(acks) < len(batch):
            await self._nack(batch, again=again)
            await self._postpone(batch)
            for handled in batch:
                # Its traceback leads back to the delivery: the body would stay until the garbage collector comes.
                handled.error = None
        self._on_settled(batch)

    async def _nack(self, batch: list[HeldDelivery], *, again: bool) -> None:
        failed = [(handled, handled.outcome) for handled in batch if isinstance(handled.outcome, Nack)]
        nacks = [(handled.delivery, nack) for handled, nack in failed]
        results = await self._connection.run(self._core.nack_each(nacks)) if nacks else ()
        for (handled, nack), (outcome, due_ms) in zip(failed, results, strict=True):
            of = self._max_attempts(handled.delivery)
            log_failure(handled.delivery, nack, handled.error, outcome, due_ms, of=of, again=again)

    async def _postpone(self, batch: list[HeldDelivery]) -> None:
        """Gives deliveries back, and shuts the doors of their topics for the longest time that a handler asked for."""
        shut_ms = postponed_ms(batch)
        if not shut_ms:
            return
        postponed = [handled for handled in batch if type(handled.outcome) is Postponed]
        await self._connection.run(self._core.release([handled.delivery for handled in postponed], shut_ms))
        for handled in postponed:
            delivery, error = handled.delivery, handled.error
            if handled.result == "cancelled":
                text = "gave %s back, as its handler was cancelled at the end of the drain"
                logger.warning(text, delivery, extra=delivery_event("handler_cancelled", delivery))
                continue
            text = "" if error is None else safe_text(error)
            fields = delivery_event("delivery_limited", delivery, shut_ms=shut_ms[delivery.topic], error=text)
            # A pause of one worker may be asked for every second, of many deliveries: its handler knows what to say.
            level = logging.WARNING if shut_ms[delivery.topic] else logging.DEBUG
            logger.log(level, "gave %s back: %s", delivery, text, extra=fields)

    def _set_apart(self, batch: list[HeldDelivery], error: LisaError, apart: asyncio.TaskGroup) -> None:
        if isinstance(error, OF_THE_SERVER):
            fields = event("settle_failed", group=self._core.group, count=len(batch), error=str(error))
            logger.warning("cannot settle %d handled deliveries, will retry: %s", len(batch), error, extra=fields)
        for handled in batch:
            shard = (handled.delivery.topic, handled.delivery.shard)
            if shard not in self._apart:
                self._apart[shard] = []
                apart.create_task(self._settle_apart(shard))
            self._apart[shard].append(self._log_unsettled(handled))

    def _max_attempts(self, delivery: Delivery) -> int | None:
        """How often the message may be delivered, by its own limit or the policy by which it is nacked."""
        if delivery.max_retries is not None:
            return delivery.max_retries + 1
        layout = self._core.topics.recall(delivery.topic)
        return layout.policy.max_retries + 1 if layout else None

    def _log_unsettled(self, handled: HeldDelivery) -> HeldDelivery:
        """Logs a failure that is not settled yet: this process may end before it can settle it."""
        delivery, outcome = handled.delivery, handled.outcome
        if isinstance(outcome, Nack):
            log_unsettled(delivery, outcome, handled.error, of=self._max_attempts(delivery))
            handled.error = None
        return handled

    async def _settle_apart(self, shard: tuple[str, str]) -> None:
        """Settles one shard by itself, until no delivery of it is left."""
        failures = 0
        while left := self._apart[shard]:
            batch = left[:MAX_BATCH]
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
                self._on_settled(batch)
            failures = 0
            del left[: len(batch)]
        del self._apart[shard]


_NOT_SENT = {
    AckOutcome.OWED: "another group still owes the message, whose id it has",
    AckOutcome.FULL: "the topic is full",
    AckOutcome.RESHARDED: "the topic was resharded, and it has another id",
}
"""Why the message that follows a delivery could not be sent; nothing has changed."""


def _judge_acks(handled: list[HeldDelivery], outcomes: list[AckOutcome], *, again: bool) -> list[HeldDelivery]:
    """Logs acks that were not plain. Returns the deliveries that have ended; the others are to be nacked."""
    if outcomes.count(AckOutcome.ACKED) == len(outcomes):
        return handled
    ended = []
    for each, outcome in zip(handled, outcomes, strict=True):
        if outcome in _NOT_SENT:
            each.outcome = Nack(each.delivery.entry, f"the message that follows was not sent: {_NOT_SENT[outcome]}")
            continue
        ended.append(each)
        if outcome in _ODD_ACKS and not (outcome is AckOutcome.STALE and again):
            logger.warning(
                _ODD_ACKS[outcome], each.delivery, extra=delivery_event(f"ack_{outcome.value}", each.delivery)
            )
    return ended


_ODD_ACKS = {
    AckOutcome.STALE: "ack of %s was stale: its lease had run out, and a newer delivery exists",
    AckOutcome.LATE: "ack of %s was late: its lease had run out; its retry is withdrawn",
    AckOutcome.DUPLICATE: "acked %s, but did not send the message that follows: its id is known",
    AckOutcome.CANCELLED: "acked %s, but did not send the message that follows: it was cancelled meanwhile",
}
