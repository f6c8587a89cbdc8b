"""Messages, as callers write them and as the server receives them."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple, Self

from lisa_common.bodies import Codec, coded
from lisa_common.errors import CannotCombine, InvalidInput, Needs
from lisa_common.model.key import with_key
from lisa_common.model.localtime import local_ms
from lisa_common.model.policy import MAX_PRIORITY, Policy
from lisa_common.model.record import pack_content
from lisa_common.validation import (
    GENERATED_SUFFIX,
    MAX_RETRIES,
    Duration,
    body_bytes,
    check_int,
    check_new_id,
    duration_ms,
    headers_json,
    moment_ms,
)

__all__ = [
    "IfExists",
    "Message",
    "Outgoing",
    "RepeatedDue",
    "Replacement",
    "check_message",
    "due_argument",
    "new_due",
    "with_codec",
]

IfExists = Literal["replace"]
"""The action of a send whose id is alive; by default it changes nothing."""


class RepeatedDue(str):
    """A due time in a send that is repeated. When it is packed for the wire, it says how long the send was tried."""

    __slots__ = ("_began",)
    _began: float

    def __new__(cls, due: str, began: float) -> Self:
        """`began` is a moment of the monotonic clock."""
        new = super().__new__(cls, due)
        new._began = began
        return new

    def __str__(self) -> str:
        return f"~{(time.monotonic() - self._began) * 1000:.3f} {super().__str__()}"


class Outgoing(NamedTuple):
    """A checked message, as a row of the scripts that store it: `due` is "+ms" from now or an absolute time in ms."""

    id: str
    due: str
    content: bytes

    @property
    def generated(self) -> bool:
        """True if Lisa made the id."""
        return self.id.endswith(GENERATED_SUFFIX)

    @property
    def is_repeated(self) -> bool:
        """True if an earlier try of the send may have stored it."""
        return isinstance(self.due, RepeatedDue)


class Replacement(Outgoing):
    """A message that replaces the one with its id, if that still waits."""

    __slots__ = ()


@dataclass(slots=True, kw_only=True)
class Message:
    """A message to send.

    body         bytes, text, or any JSON value; also a pydantic model, a dataclass, UUID, Decimal, datetime
    delay        seconds or timedelta from now, by the server's clock; excludes `at`
    at           an aware datetime; a past one is due now
    at_local     a datetime without a zone, or its ISO text, with its zone in `tz`; excludes `delay` and `at`
    tz           an IANA zone, as in Europe/Berlin: where clocks jump over `at_local`, it stands for the end of the gap,
                 and for the first of two where they show it twice
    id           chosen by the caller: sent at most once while alive and in the topic's dedup window
    ttl          seconds or timedelta after the due time in which it may be delivered; at most the topic's ttl
    max_retries  most retries after the first delivery; the topic's by default
    priority     0 to 255, highest first among messages due in the same millisecond; the topic's by default
    headers      text to text
    key          what the message is about, such as a customer: the topic's `max_in_flight_per_key` limits how many of a
                 key are in flight; with 1, they are handled in the order of their due times
    if_exists    "replace" replaces a message of this id that waits or is to be retried; needs `id`. By default, and
                 where that message is ready, delivered, dead or finished, the send is a duplicate
    """

    body: Any
    delay: Duration | None = None
    at: datetime | None = None
    at_local: datetime | str | None = None
    tz: str | None = None
    id: str | None = None
    ttl: Duration | None = None
    max_retries: int | None = None
    priority: int | None = None
    headers: Mapping[str, str] | None = None
    key: str | None = None
    if_exists: IfExists | None = None

    def outgoing(self, policy: Policy, generated_id: str, context: Mapping[str, str] | None = None) -> Outgoing:
        """Checks the message against the topic's policy; raises InvalidInput.

        The headers of `context` are added unless the message has one of them, or no room for them.
        """
        if type(self.body) is Message:
            raise InvalidInput("body", self.body, "a body; send_many takes a Message with its options")
        ttl_ms = policy.ttl_ms
        if self.ttl is not None:
            own_ms = duration_ms("ttl", self.ttl, low_ms=1)
            ttl_ms = own_ms if ttl_ms is None else min(own_ms, ttl_ms)
        retries = self.max_retries
        if retries is not None:
            retries = check_int("max_retries", retries, 0, MAX_RETRIES)
        priority = policy.priority
        if self.priority is not None:
            priority = check_int("priority", self.priority, 0, MAX_PRIORITY)
        headers = with_key(self.headers, self.key) if self.headers or self.key is not None else None
        content = pack_content(
            body_bytes(self.body, policy.max_body_bytes),
            ttl_ms=ttl_ms,
            max_retries=retries,
            priority=priority,
            headers=_headers_json(headers, context) if context else headers_json(headers),
        )
        id = generated_id if self.id is None else check_new_id(self.id)
        due = due_argument(self.delay, self.at, self.at_local, self.tz)
        kind = Outgoing if self.if_exists is None else self._replacement()
        return tuple.__new__(kind, (id, due, content))

    def _replacement(self) -> type[Replacement]:
        if self.if_exists != "replace":
            raise InvalidInput("if_exists", self.if_exists, "'replace' or omitted")
        if self.id is None:
            raise Needs("if_exists", self.if_exists, "id")
        return Replacement


def new_due(delay: Duration | None, at: datetime | None) -> str:
    """As `due_argument`, for a message that has a due time: one of the two must be given."""
    if delay is None and at is None:
        raise InvalidInput("delay", delay, "given, 0 for now, or at in its place")
    return due_argument(delay, at)


def _headers_json(headers: Mapping[str, str] | None, context: Mapping[str, str]) -> bytes:
    own = headers_json(headers)
    if not context.keys().isdisjoint(headers or {}):
        return own
    try:
        return headers_json({**(headers or {}), **context})
    except InvalidInput:
        return own


def check_message(value: object) -> Message:
    """A message; raises InvalidInput for anything else."""
    if not isinstance(value, Message):
        raise InvalidInput("message", value, "a Message, as in Message(body=...)")
    return value


def with_codec(message: Message, codec: Codec | None) -> Message:
    """A message whose body its codec will encode; any other value stays as it is."""
    if codec is None or not isinstance(message, Message):
        return message
    return replace(message, body=coded(message.body, codec))


def due_argument(
    delay: Duration | None, at: datetime | None, at_local: datetime | str | None = None, tz: str | None = None
) -> str:
    """The due time for scripts: "+ms" from now, or ms since the epoch; now by default. Raises InvalidInput."""
    if at_local is not None:
        if delay is not None or at is not None:
            name, value = ("at", at) if at is not None else ("delay", delay)
            raise CannotCombine(name, value, "at_local")
        moment = datetime.fromtimestamp(local_ms("at_local", at_local, tz) / 1000, UTC)
        return str(moment_ms("at_local", moment))
    if tz is not None:
        raise Needs("tz", tz, "at_local")
    if at is None:
        return f"+{duration_ms('delay', 0 if delay is None else delay)}"
    if delay is not None:
        raise CannotCombine("delay", delay, "at")
    return str(moment_ms("at", at))
