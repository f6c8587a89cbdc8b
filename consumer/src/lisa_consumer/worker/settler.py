"""Settles deliveries: acks, nacks and gives back, in batches, with retries. Their end is here."""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Sequence

from lisa_common.backoff import RECONNECT
from lisa_common.client.async_connection import AsyncConnection
from lisa_common.errors import OF_THE_SERVER, LisaError
from lisa_common.escaping import safe_text
from lisa_common.logs import event
from lisa_common.model.delivery import Delivery
from lisa_common.protocol.call import cut
from lisa_common.protocol.consuming import AckOutcome, Nack, Postponed
from lisa_consumer.delivery.core import MAX_BATCH, MAX_BYTES, Core, follow_up_sizes
from lisa_consumer.events import delivery_event
from lisa_consumer.handling.failure_log import log_failure, log_unsettled
from lisa_consumer.metrics import METRICS
from lisa_consumer.worker.held import HeldDelivery, postponed_ms
from lisa_consumer.worker.leases import Leases
from lisa_consumer.worker.queue import Queue
from lisa_consumer.worker.windows import Windows

__all__ = ["Settler"]

logger = logging.getLogger(__name__)

_AMPLE, _GATHER_S = 512, 0.004
"""A batch gathers while handlers end one after another, until it has as many deliveries or for so long."""

_WAVE = 3
"""Turns of the event loop from the end of a handler to that of the next one."""

_SLOW_S = 15.0
"""A batch that is under way for longer than this makes the worker not ready."""


class Settler:
    """Settles in batches. While one batch is on its way to the server, the next one gathers.

    A batch that fails is retried with growing delays: a short outage must not have messages handled twice. So is one
    whose reply is lost: a second ack changes nothing, and is stale if the first one had arrived. Meanwhile
    its shards are settled apart, as other shards may be at other servers.
    """

    def __init__(self, connection: AsyncConnection, core: Core, queue: Queue, leases: Leases, windows: Windows) -> None:
        self._connection = connection
        self._core = core
        self._queue, self._leases, self._windows = queue, leases, windows
        self._ready: list[HeldDelivery] = []
        self._apart: dict[tuple[str, str], list[HeldDelivery]] = {}
        """Deliveries of each shard that is settled apart."""
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

    def put(self, settling: Sequence[HeldDelivery], *, at_once: bool = False) -> None:
        """Takes deliveries that have an outcome; `at_once` if these must not wait for others."""
        self._hurries |= at_once
        if settling:
            self._ready += settling
            self._wake.set()

    def close(self) -> None:
        """Lets `run` end once everything is settled."""
        self._closing = self._hurries = True
        self._wake.set()

    async def run(self) -> None:
        """Settles until closed and empty."""
        async with asyncio.TaskGroup() as apart:
            while self._ready or not self._closing:
                await self._wake.wait()
                self._wake.clear()
                while self._ready:
                    await self._let_gather()
                    await self._settle_next(apart)

    async def _let_gather(self) -> None:
        """Waits while more handlers end in every wave: one call for many takes less than several for a few each."""
        until = time.monotonic() + _GATHER_S
        before = 0
        while before < len(self._ready) < _AMPLE and not self._hurries and time.monotonic() < until:
            before = len(self._ready)
            # In one turn of the event loop slots come free, in the next one others begin, and then these end.
            for _ in range(_WAVE):
                await asyncio.sleep(0)

    async def _settle_next(self, apart: asyncio.TaskGroup) -> None:
        batch = _first(self._ready, MAX_BYTES)
        del self._ready[: len(batch)]
        self._hurries = False
        self._observe(batch)
        if self._apart:
            batch = [held for held in batch if not self._add_apart(held)]
        if not batch:
            return
        self._began_at = time.monotonic()
        try:
            await self._settle(batch)
        except LisaError as error:
            self._set_apart(batch, error, apart)
        finally:
            self._began_at = None

    def _observe(self, batch: Sequence[HeldDelivery]) -> None:
        """Adds the times of handlers that have ended to the averages of their topics, and to the metrics."""
        times = defaultdict[tuple[str, str], list[float]](list)
        for held in batch:
            if held.took_s is not None:
                times[held.delivery.topic, held.result].append(held.took_s)
        of_topics = defaultdict[str, list[float]](list)
        for (topic, outcome), durations in times.items():
            if outcome != "limited":
                # That says nothing of the time that a message takes: the window must not grow by it.
                of_topics[topic] += durations
            METRICS.observe("lisa_handler_seconds", durations, topic, self._core.group, outcome)
        # Once for each topic: a window compares these times with what has passed since its last call.
        for topic, durations in of_topics.items():
            self._windows[topic].observe(durations)

    def _add_apart(self, held: HeldDelivery) -> bool:
        """Adds a delivery to those of its shard, if that is settled apart. Returns whether it is."""
        apart = self._apart.get((held.delivery.topic, held.delivery.shard))
        if apart is None:
            return False
        apart.append(self._log_unsettled(held))
        return True

    async def _settle(self, batch: list[HeldDelivery], *, again: bool = False) -> None:
        try:
            if acks := [held for held in batch if held.outcome is None]:
                outcomes = await self._connection.run(self._core.ack([held.delivery for held in acks]))
                acks = _judge_acks(acks, outcomes, again=again)
            if len(acks) < len(batch):
                await self._nack(batch, again=again)
                await self._release(batch)
        except LisaError as error:
            self._failure = str(error)
            raise
        self._end(batch)

    def _end(self, batch: Sequence[HeldDelivery]) -> None:
        for held in batch:
            held.end()
        self._leases.drop(batch)
        self._queue.leave(batch)
        self._windows.release(batch)

    async def _nack(self, batch: list[HeldDelivery], *, again: bool) -> None:
        failed = [(handled, handled.outcome) for handled in batch if isinstance(handled.outcome, Nack)]
        nacks = [(handled.delivery, nack) for handled, nack in failed]
        results = await self._connection.run(self._core.nack_each(nacks)) if nacks else ()
        for (handled, nack), (outcome, due_ms) in zip(failed, results, strict=True):
            of = self._max_attempts(handled.delivery)
            log_failure(handled.delivery, nack, handled.error, outcome, due_ms, of=of, again=again)

    async def _release(self, batch: list[HeldDelivery]) -> None:
        """Gives deliveries back, and shuts the doors of their topics for the longest time that a handler asked for."""
        shut_ms = postponed_ms(batch)
        if not shut_ms:
            return
        postponed = [held for held in batch if type(held.outcome) is Postponed]
        released = await self._connection.run(self._core.release([held.delivery for held in postponed], shut_ms))
        begun = [held for held in postponed if held.took_s is not None]
        if len(begun) < len(postponed):
            count = max(0, released - len(begun))
            fields = event("deliveries_released", group=self._core.group, count=count)
            logger.info("released %d deliveries that had not begun", count, extra=fields)
        for held in begun:
            _log_release(held, shut_ms[held.delivery.topic])

    def _set_apart(self, batch: list[HeldDelivery], error: LisaError, apart: asyncio.TaskGroup) -> None:
        if isinstance(error, OF_THE_SERVER):
            fields = event("settle_failed", group=self._core.group, count=len(batch), error=str(error))
            logger.warning("cannot settle %d deliveries, will retry: %s", len(batch), error, extra=fields)
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
            # What did not pass in time may pass in smaller requests.
            batch = _first(left, MAX_BYTES >> failures)
            try:
                await self._settle(batch, again=True)
            except OF_THE_SERVER as error:
                failures += 1
                if self._closing:
                    left[:] = self._let_go(left, error)
                if left:
                    await asyncio.sleep(RECONNECT.compute(failures))
                continue
            except LisaError as error:
                place = {"topic": shard[0], "shard": shard[1], "group": self._core.group}
                logger.error(
                    "cannot settle %d deliveries of topic %s, which may come again when their leases have run out: %s",
                    *(len(batch), shard[0], error),
                    extra=event("deliveries_unsettled", **place, count=len(batch), error=str(error)),
                )
                self._end(batch)
            failures = 0
            del left[: len(batch)]
        del self._apart[shard]

    def _let_go(self, left: list[HeldDelivery], error: LisaError) -> list[HeldDelivery]:
        """Lets go of what has not begun, which a stop does not wait for without a server. Returns the others."""
        unbegun = [held for held in left if held.took_s is None]
        if unbegun:
            fields = event("release_failed", group=self._core.group, count=len(unbegun), error=str(error))
            text = "cannot release %d deliveries; their leases will run out: %s"
            logger.warning(text, len(unbegun), error, extra=fields)
            self._end(unbegun)
        return [held for held in left if held.took_s is not None]


def _first(held: list[HeldDelivery], most_bytes: int) -> list[HeldDelivery]:
    """The first of these, as many as one request carries."""
    batch = held[:MAX_BATCH]
    return batch[next(cut(follow_up_sizes([each.delivery for each in batch]), MAX_BATCH, most_bytes))]


def _log_release(held: HeldDelivery, shut_ms: int) -> None:
    delivery, error = held.delivery, held.error
    if held.result in _CUT_SHORT:
        logger.warning(_CUT_SHORT[held.result], delivery, extra=delivery_event(f"handler_{held.result}", delivery))
        return
    text = "" if error is None else safe_text(error)
    fields = delivery_event("delivery_limited", delivery, shut_ms=shut_ms, error=text)
    # A pause of one worker may be asked for every second, of many deliveries: its handler knows what to say.
    logger.log(logging.WARNING if shut_ms else logging.DEBUG, "gave %s back: %s", delivery, text, extra=fields)


_CUT_SHORT = {
    "cancelled": "gave %s back, as its handler was cancelled",
    "aborted": "the handler of %s has ended, as an operator has aborted it",
}
"""What a handler was whose end counts for nothing."""


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
    AckOutcome.STALE: "ack of %s was stale: its lease had run out and a newer delivery exists, or it was aborted",
    AckOutcome.LATE: "ack of %s was late: its lease had run out; its retry is withdrawn",
    AckOutcome.DUPLICATE: "acked %s, but did not send the message that follows: its id is known",
    AckOutcome.CANCELLED: "acked %s, but did not send the message that follows: it was cancelled meanwhile",
}
