"""The calls on messages that were sent."""

import asyncio
import logging
import time
from contextlib import suppress
from datetime import timedelta

from starlette.responses import Response
from starlette.types import Receive

from lisa_common.errors import InvalidInput, LisaError, Refused
from lisa_common.model.delivery import Delivery
from lisa_common.validation import check_name
from lisa_consumer import AckOutcome, NackOutcome, Note
from lisa_gateway.camellia.answers import Code, Failed, answer, encode_answer
from lisa_gateway.camellia.message_views import (
    END_STATES,
    Known,
    Status,
    delivered,
    ended_note,
    find_known,
    from_note,
    lent_note,
)
from lisa_gateway.camellia.monitor import Event, Monitor
from lisa_gateway.camellia.parameters import MAX_MS, Parameters, check_ms
from lisa_gateway.gateway import Gateway
from lisa_gateway.handover import HandedOver, Handover
from lisa_gateway.metrics import METRICS
from lisa_gateway.polls import MAX_BATCH, Poller
from lisa_gateway.problems import part_is_done
from lisa_gateway.settings import MAX_WAIT_S
from lisa_producer import CancelOutcome, RescheduleOutcome, State

__all__ = ["MessageCalls"]

logger = logging.getLogger(__name__)

_HOLD_S = 1.0
"""How long the answer to a failed poll is held, as clients ask again at once."""


class MessageCalls:
    """pullMsg, longPollingMsg, ackMsg, deleteMsg, getMsg; triggerMsg and rescheduleMsg."""

    def __init__(self, gateway: Gateway, monitor: Monitor) -> None:
        self._gateway = gateway
        self._settings = gateway.settings
        self._monitor = monitor

    async def pull(self, parameters: Parameters, receive: Receive) -> Response:
        """`pullMsg`: messages that are ready now."""
        return await self._pull(parameters, receive, wait_s=0.0)

    async def long_poll(self, parameters: Parameters, receive: Receive) -> Response:
        """`longPollingMsg`: messages that are ready, or become ready before the timeout; else none."""
        began = time.monotonic()
        wait_ms = parameters.positive("longPollingTimeoutMillis", round(self._settings.poll_s * 1000))
        wait_s = min(wait_ms / 1000, MAX_WAIT_S)
        try:
            with parameters.caller.quota.poll():
                return await self._pull(parameters, receive, wait_s=wait_s)
        except LisaError:
            await asyncio.sleep(began + min(_HOLD_S, wait_s) - time.monotonic())
            raise

    async def _pull(self, parameters: Parameters, receive: Receive, *, wait_s: float) -> Response:
        topic = parameters.required_text("topic")
        batch = min(parameters.positive("batch", 1, 32), MAX_BATCH)
        lease_ms = parameters.positive("ackTimeoutMillis", round(self._settings.ack_timeout_s * 1000))
        check_ms("ackTimeoutMillis", lease_ms)
        group, quota = parameters.text("group"), parameters.caller.quota
        if group:
            check_name("group", group)
        topics = self._gateway.topics
        await topics.declare(topic, quota, group)
        polls = self._gateway.desk(group, quota).polls
        if wait_s and polls.count_of(topic) >= self._settings.max_polls:
            return answer(msg=None, delayMsgList=[])
        async with Handover(polls, Poller(topic, batch, lease_ms / 1000, by_id=True), receive) as handover:
            deliveries = await topics.unless_dropped(topic, handover.read(wait_s))
            return HandedOver(handover, await self._pulled(topic, deliveries))

    async def _pulled(self, topic: str, deliveries: list[Delivery]) -> bytes:
        if not deliveries:
            return encode_answer(msg=None, delayMsgList=[])
        policy = await self._gateway.topics.policy(topic)
        now_ms = await self._gateway.now_ms()
        self._monitor.count_pulled(topic, [now_ms - delivery.due_ms for delivery in deliveries])
        return encode_answer(msg=None, delayMsgList=[delivered(delivery, policy) for delivery in deliveries])

    async def ack(self, parameters: Parameters, _: Receive) -> Response:
        """`ackMsg`: ends a delivery that a client holds, or gives it back. Only counts an ack of any other message."""
        topic, id = parameters.required_text("topic"), parameters.required_text("msgId")
        lender, group = self._gateway.lender, parameters.text("group") or None
        outcome: AckOutcome | NackOutcome | None
        if parameters.flag("ack", default=True):
            outcome = await lender.ack_lent(topic, id, group=group, note=await self._note(topic))
        else:
            delay_ms = parameters.number("delayMillis", 0 if self._settings.nack_at_once else None)
            delay = None if delay_ms is None else timedelta(milliseconds=min(max(0, delay_ms), MAX_MS))
            outcome = await lender.nack_lent(topic, id, group=group, delay=delay, error="ack=false")
        if outcome in (None, AckOutcome.STALE, NackOutcome.STALE):
            self._monitor.stale += 1
            METRICS.count("lisa_http_stale_acks_total")
        self._monitor.count(topic, Event.ACK)
        return answer()

    async def _note(self, topic: str) -> Note | None:
        if not self._settings.ended_s:
            return None
        policy = await self._gateway.topics.policy(topic)
        return Note(lambda lent: lent_note(lent, policy), round(self._settings.ended_s * 1000))

    async def delete(self, parameters: Parameters, _: Receive) -> Response:
        """`deleteMsg`: ends a live message; with `release`, `getMsg` no longer shows it."""
        topic, id = parameters.required_text("topic"), parameters.required_text("msgId")
        release = parameters.flag("release", default=False)
        known = await find_known(self._gateway, topic, id, alive=True)
        if known is None or known.status in END_STATES:
            if release:
                await self._forget(topic, id, known)
            raise Failed(Code.NOT_EXISTS, "no live message has this id")
        # The note comes first: a gateway that dies in between leaves a live message, which hides the note.
        await self._keep_note(topic, id, known, None if release else Status.DELETED)
        outcome = await self._gateway.producer.cancel(topic, id)
        if outcome not in (CancelOutcome.CANCELLED, CancelOutcome.DELIVERED):
            # It was acked meanwhile, and that note may have been overwritten.
            await self._keep_note(topic, id, known, None if release else Status.CONSUMED)
            raise Failed(Code.NOT_EXISTS, f"the message has ended meanwhile: {outcome}")
        with part_is_done():
            if outcome is CancelOutcome.DELIVERED:
                # The client that has it may still handle it; the id is free now.
                await self._gateway.lender.nack_lent(topic, id, rejected=True)
            if release:
                await self._forget(topic, id)
        self._monitor.count(topic, Event.DELETE)
        return answer()

    async def trigger(self, parameters: Parameters, _: Receive) -> Response:
        """`triggerMsg`: makes a waiting message, or one to be retried, due now; a ready one is left as it is."""
        return await self._reschedule(parameters, 0, fine=(RescheduleOutcome.RESCHEDULED, RescheduleOutcome.READY))

    async def reschedule(self, parameters: Parameters, _: Receive) -> Response:
        """`rescheduleMsg`: gives a waiting message, or one to be retried, another due time, counted from now."""
        delay_ms = max(0, parameters.required_number("delayMillis"))
        return await self._reschedule(parameters, delay_ms, fine=(RescheduleOutcome.RESCHEDULED,))

    async def _reschedule(self, parameters: Parameters, delay_ms: int, fine: tuple[RescheduleOutcome, ...]) -> Response:
        topic, id = parameters.required_text("topic"), parameters.required_text("msgId")
        check_ms("delayMillis", delay_ms)
        outcome = await self._gateway.producer.reschedule(topic, id, delay=timedelta(milliseconds=delay_ms))
        if outcome not in fine:
            raise Failed(Code.NOT_EXISTS, f"no waiting message has this id: it is {outcome}")
        known = None
        # It is done, whether or not it can be shown.
        with suppress(LisaError):
            known = await find_known(self._gateway, topic, id, alive=True)
        return answer(delayMsg=known.message) if known else answer()

    async def _keep_note(self, topic: str, id: str, known: Known, status: Status | None) -> None:
        """Keeps a note on a message that ends. With None, removes its note."""
        lender = self._gateway.lender
        if status is None:
            await lender.drop_note(topic, id)
        elif self._settings.ended_s:
            # A full server refuses it, and lets messages end all the same.
            with suppress(Refused):
                await lender.keep_note(topic, id, ended_note(known.message, status), self._settings.ended_s)

    async def _forget(self, topic: str, id: str, known: Known | None = None) -> None:
        """Removes what is kept of a message that has ended."""
        with suppress(InvalidInput):
            await self._gateway.lender.drop_note(topic, id)
            await self._gateway.lender.end_window(topic, id)
        if known and known.state is State.GARBAGE:
            await self._gateway.admin.purge(topic, [id])

    async def get(self, parameters: Parameters, _: Receive) -> Response:
        """`getMsg`: a message as it stands now, also for a while after its end."""
        topic, id = parameters.required_text("topic"), parameters.required_text("msgId")
        known = await find_known(self._gateway, topic, id)
        shown = None if known is None else known.message
        if known is None or known.by_others or known.state in (State.FINISHED, State.CANCELLED):
            noted = from_note(await self._gateway.lender.note(topic, id))
            shown = noted or (None if known is None or known.state is State.CANCELLED else known.message)
        if shown is None:
            raise Failed(Code.NOT_EXISTS, "there is no message of this id, or no more")
        self._monitor.count(topic, Event.GET)
        return answer(delayMsg=shown)
