"""Messages as clients see them, and notes on those that have ended."""

import base64
from enum import IntEnum
from typing import Any, NamedTuple

from lisa_common.model.delivery import Delivery
from lisa_common.model.policy import Policy
from lisa_common.model.record import Record
from lisa_consumer import Lent
from lisa_gateway.gateway import Gateway
from lisa_gateway.json_text import decode, encode
from lisa_producer import CopyState, Found, State

__all__ = [
    "END_STATES",
    "Known",
    "Message",
    "Status",
    "delivered",
    "ended_note",
    "find_known",
    "from_note",
    "lent_note",
    "message",
]

NEVER_MS = 10 * 365 * 86_400_000
"""Added to the due time of a message without a ttl: clients expect a number."""

_EXPIRED = "expired"


class Status(IntEnum):
    """States, by camellia's numbers."""

    WAITING = 1
    READY = 2
    DELIVERED = 3
    CONSUMED = 4
    EXPIRED = 5
    GIVEN_UP = 6
    DELETED = 7


_ENDED = (State.EXPIRED, State.GARBAGE)

END_STATES = frozenset((Status.CONSUMED, Status.EXPIRED, Status.GIVEN_UP, Status.DELETED))

Message = dict[str, Any]


class Known(NamedTuple):
    """A stored message: as clients see it, and the state by which to end it."""

    message: Message
    status: Status
    state: State
    by_others: bool
    """Whether only other groups have copies, so that it is seen as they see it."""


def message(topic: str, id: str, record: Record | None, policy: Policy, *, retry: int, status: Status) -> Message:
    """A message with the nine fields of the interface; without a record, only those that are known.

    A body that is not UTF-8 is in base64, with `msgEncoding`.
    """
    if record is None:
        return {"topic": topic, "msgId": id, "retry": retry, "status": int(status)}
    return {
        "topic": topic,
        "msgId": id,
        **_text_of(record.body),
        "produceTime": record.sent_ms,
        "triggerTime": record.due_ms,
        "expireTime": record.due_ms + (NEVER_MS if record.ttl_ms is None else record.ttl_ms),
        "maxRetry": policy.max_retries if record.max_retries is None else record.max_retries,
        "retry": retry,
        "status": int(status),
    }


def _text_of(body: bytes) -> Message:
    try:
        return {"msg": body.decode()}
    except UnicodeDecodeError:
        return {"msg": base64.b64encode(body).decode(), "msgEncoding": "base64"}


def delivered(given: Delivery, policy: Policy) -> Message:
    """A message that is pulled now."""
    due_ms, limits = given.entry.due_ms, (given.ttl_ms, given.max_retries)
    record = Record(given.sent_ms, due_ms, given.body, *limits, 0, given.headers)
    return message(given.topic, given.id, record, policy, retry=given.attempt, status=Status.DELIVERED)


async def find_known(gateway: Gateway, topic: str, id: str, *, alive: bool = False) -> Known | None:
    """A stored message as clients see it, by the copy of the group of the gateway; None if the id is free.

    Where that group has no copy, it is seen as other groups see it; with `alive` also where that copy has died or
    expired and another lives. A message counts as expired from its expiry time on, even before a read or a sweep finds
    it; the server judges that, as its clock may be set.
    """
    found = await gateway.producer.find(topic, id)
    if found is None:
        return None
    policy = await gateway.topics.policy(topic)
    copy = _copy_of(found, gateway.settings.group)
    if alive and copy and copy.state in _ENDED and found.state not in _ENDED:
        copy = None
    state = copy.state if copy else found.state
    retry = copy.attempts if copy else 0
    status = _status_of(copy, state, retry)
    shown = message(topic, found.id, found.record, policy, retry=retry, status=status)
    if copy and copy.failure and state is State.GARBAGE:
        shown |= {"reason": copy.failure.reason, "error": copy.failure.error}
    return Known(shown, status, state, by_others=copy is None and bool(found.copies))


def _copy_of(found: Found, group: str) -> CopyState | None:
    by_group = {copy.group: copy for copy in found.copies}
    # A message that died or became ready before any group existed has a copy without a group.
    return by_group.get(group) or by_group.get("")


def _status_of(copy: CopyState | None, state: State, retry: int) -> Status:
    if state is State.GARBAGE:
        expired_unread = copy and copy.failure and copy.failure.reason == _EXPIRED and not copy.attempts
        return Status.EXPIRED if expired_unread else Status.GIVEN_UP
    if state is State.DELIVERED:
        return Status.DELIVERED
    if state is State.FINISHED:
        return Status.CONSUMED
    if state is State.CANCELLED:
        return Status.DELETED
    if state is State.EXPIRED:
        return Status.GIVEN_UP if retry else Status.EXPIRED
    return Status.WAITING if state is State.WAITING else Status.READY


def ended_note(shown: Message, status: Status) -> bytes:
    """The note on a message that ends with this status."""
    return encode(shown | {"status": int(status)})


def lent_note(lent: Lent, policy: Policy) -> bytes:
    """The note on a message that is acked."""
    delivery = lent.delivery
    shown = message(delivery.topic, delivery.id, lent.record, policy, retry=delivery.attempt, status=Status.CONSUMED)
    return ended_note(shown, Status.CONSUMED)


def from_note(note: bytes | None) -> Message | None:
    """A message by its note; None for none, or a damaged one."""
    try:
        shown = decode(note or b"null")
    except (ValueError, RecursionError):
        return None
    return shown if isinstance(shown, dict) else None
