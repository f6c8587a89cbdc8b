"""The calls that send: sendMsg, and sendMsgBatch for many at once."""

import asyncio
import secrets
import time
from contextlib import nullcontext
from typing import Any, NamedTuple

from starlette.responses import Response
from starlette.types import Receive

from lisa_common.errors import InvalidInput
from lisa_common.model.policy import DEFAULT_POLICY
from lisa_common.model.record import Record
from lisa_common.validation import MAX_RETRIES, check_new_id
from lisa_gateway.aside import aside
from lisa_gateway.camellia.answers import Code, Failed, answer, failure_of
from lisa_gateway.camellia.message_views import END_STATES, Known, Message, Status, find_known, from_note, message
from lisa_gateway.camellia.monitor import Event, Monitor
from lisa_gateway.camellia.parameters import MAX_MS, Parameters, check_ms, shown
from lisa_gateway.gateway import Gateway
from lisa_gateway.json_text import decode
from lisa_gateway.polls import MAX_BATCH
from lisa_gateway.problems import part_is_done
from lisa_producer import SendResult, State

__all__ = ["SendCalls"]

_TRIES = 5
"""Further tries to send an id whose message ends meanwhile."""

_FIELDS = ("msg", "delayMillis", "msgId", "ttlMillis", "maxRetry")


class _New(NamedTuple):
    """A message to send."""

    id: str
    is_named: bool
    """Whether the client chose its id, and so may mean a new message by that of an ended one."""
    body: bytes
    delay_ms: int
    ttl_ms: int
    max_retries: int


class SendCalls:
    """sendMsg and sendMsgBatch."""

    def __init__(self, gateway: Gateway, monitor: Monitor) -> None:
        self._gateway = gateway
        self._settings = gateway.settings
        self._monitor = monitor
        self._ttl_ms = round(gateway.settings.ttl_s * 1000)

    async def send(self, parameters: Parameters, _: Receive) -> Response:
        """`sendMsg`: sends one message. If a message with its id is alive, answers with that message."""
        topic = parameters.required_text("topic")
        new = self._read(parameters)
        await self._gateway.topics.declare(topic, parameters.caller.quota)
        return answer(delayMsg=await self._send(topic, new))

    async def send_batch(self, parameters: Parameters, _: Receive) -> Response:
        """`sendMsgBatch`: sends many messages of one topic. If one of them has a wrong value, none is sent.

        Answers with an item for each; that of a failed one has its id, by which it may be sent again.
        """
        topic = parameters.required_text("topic")
        text = parameters.required_text("msgs")
        new = await aside(len(text), lambda: [self._item(place, item) for place, item in enumerate(_items(text))])
        await self._gateway.topics.declare(topic, parameters.caller.quota)
        most = (await self._gateway.topics.policy(topic)).max_body_bytes
        for place, each in enumerate(new):
            if len(each.body) > most:
                raise Failed(Code.PARAM_WRONG, f"msgs.{place}.msg must be at most {most} bytes; got {len(each.body)}")
        # They share round trips. All are waited for, as an error of one says nothing of the others.
        results = await asyncio.gather(*(self._send(topic, each) for each in new), return_exceptions=True)
        failures: dict[int, Failed] = {}
        items: list[Message] = []
        for place, (each, result) in enumerate(zip(new, results, strict=True)):
            if isinstance(result, BaseException):
                failed = failure_of(result)
                if failed is None:
                    raise result
                failures[place] = failed
                items.append({"topic": topic, "msgId": each.id, "code": int(failed.code), "error": failed.reason})
            else:
                items.append(result)
        if not failures:
            return answer(delayMsgList=items)
        place, first = next(iter(failures.items()))
        told = f"{len(failures)} of {len(new)} messages failed, the first at msgs.{place}: {first.reason}"
        return answer(first.code, told, delayMsgList=items)

    def _item(self, place: int, item: Any) -> _New:
        if not isinstance(item, dict):
            raise Failed(Code.PARAM_WRONG, f"msgs.{place} must be an object of texts and whole numbers")
        for name, value in item.items():
            if name not in _FIELDS:
                expected = f"msgs.{place} must have fields of {', '.join(_FIELDS)}"
                raise Failed(Code.PARAM_WRONG, f"{expected}; got {shown(name)}")
            if type(value) not in (str, int):
                raise Failed(Code.PARAM_WRONG, f"msgs.{place} must be an object of texts and whole numbers")
        try:
            new = self._read(Parameters({name: str(value) for name, value in item.items()}))
        except Failed as error:
            raise Failed(Code.PARAM_WRONG, f"msgs.{place}.{error.reason}") from None
        except InvalidInput as error:
            raise Failed(Code.PARAM_WRONG, f"msgs.{place}.msgId must be {error.expected}") from None
        return new

    def _read(self, parameters: Parameters) -> _New:
        text = parameters.required_text("msg")
        delay_ms = max(0, parameters.required_number("delayMillis"))
        ttl_ms = min(parameters.positive("ttlMillis", self._ttl_ms), MAX_MS)
        retries = parameters.number("maxRetry", -1, 32)
        assert retries is not None  # noqa: S101 - it has a default
        retries = self._settings.max_retries if retries < 0 else min(retries, MAX_RETRIES)
        check_ms("delayMillis", delay_ms)
        try:
            body = text.encode()
        except UnicodeEncodeError:
            raise Failed(Code.PARAM_WRONG, "msg must be text that UTF-8 can encode") from None
        if id := parameters.text("msgId"):
            # Here, before a topic is declared for what is refused.
            check_new_id(id)
        return _New(id or secrets.token_hex(16), bool(id), body, delay_ms, ttl_ms, retries)

    async def _send(self, topic: str, new: _New) -> Message:
        began = time.monotonic()
        result = await self._store(topic, new)
        return await self._again(topic, new, began) if result.duplicate else self._sent(topic, new, result.due_ms)

    async def _store(self, topic: str, new: _New) -> SendResult:
        return await self._gateway.producer.send(
            topic,
            new.body,
            delay=new.delay_ms / 1000,
            id=new.id,
            ttl=new.ttl_ms / 1000,
            max_retries=new.max_retries,
        )

    async def _again(self, topic: str, new: _New, began: float) -> Message:
        """The message whose id is known; sends the new one instead if that has ended."""
        for _try in range(_TRIES):
            known = await find_known(self._gateway, topic, new.id, alive=True)
            first = await self._first(topic, new, known, began) if known else None
            if first is not None:
                self._monitor.count(topic, Event.SEND)
                return first
            # What had ended was removed, unless it was gone by itself.
            with part_is_done() if known else nullcontext():
                result = await self._store(topic, new)
            if not result.duplicate:
                return self._sent(topic, new, result.due_ms)
        raise Failed(Code.UNKNOWN, f"msgId {new.id!r} belongs to a message that is about to end; send it again")

    def _sent(self, topic: str, new: _New, due_ms: int | None) -> Message:
        """Counts a message that was stored. Returns what clients see of it."""
        due_ms = due_ms or 0
        self._monitor.count(topic, Event.SEND)
        record = Record(due_ms - new.delay_ms, due_ms, new.body, new.ttl_ms, new.max_retries, 0, {})
        status = Status.WAITING if new.delay_ms else Status.READY
        return message(topic, new.id, record, DEFAULT_POLICY, retry=0, status=status)

    async def _first(self, topic: str, new: _New, known: Known, began: float) -> Message | None:
        """The message that has an id; None once the id is free again, for one that had ended."""
        id = new.id
        if known.state is State.CANCELLED:
            # It keeps the id until a consumer meets its entry. If a client has it, that is now.
            if await self._gateway.lender.nack_lent(topic, id, rejected=True) is None:
                raise Failed(
                    Code.UNKNOWN, f"msgId {id!r} belongs to a deleted message until consumers reach it; send it later"
                )
            return None
        if known.status not in END_STATES:
            return known.message
        noted = await self._gateway.lender.note(topic, id) if known.state is State.FINISHED else None
        ended = from_note(noted) or known.message
        if not (self._settings.resend_ended and new.is_named) or await self._is_own(ended, new, began):
            return ended
        if known.state is State.GARBAGE:
            await self._gateway.admin.purge(topic, [id])
        elif known.state is State.FINISHED:
            await self._gateway.lender.end_window(topic, id)
        else:
            # Expired, and not yet swept.
            await self._gateway.producer.cancel(topic, id)
        return None

    async def _is_own(self, ended: Message, new: _New, began: float) -> bool:
        """Whether the first try of this call sent the ended message. The reply to that try was lost."""
        began_ms = await self._gateway.now_ms() - (time.monotonic() - began) * 1000
        sent_ms = ended.get("produceTime")
        return ended.get("msg") == new.body.decode() and isinstance(sent_ms, int) and sent_ms >= began_ms


def _items(text: str) -> list[Any]:
    try:
        items = decode(text.encode())
    except (ValueError, RecursionError):
        items = None
    if not isinstance(items, list) or not 1 <= len(items) <= MAX_BATCH:
        raise Failed(Code.PARAM_WRONG, f"msgs must be a JSON list of 1 to {MAX_BATCH:,} messages")
    return items
