"""Entries of the ready stream, and the deliveries that they form with their records."""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Generic, NamedTuple

from typing_extensions import TypeVar

from lisa_common.errors import InvalidInput
from lisa_common.model.death import Death, read_deaths
from lisa_common.model.follow_up import FollowUps
from lisa_common.model.key import key_of
from lisa_common.model.keys import ShardKeys
from lisa_common.model.message import Message
from lisa_common.model.record import HEAD_BYTES, VERSION, Record, unpack_head
from lisa_common.validation import Duration

__all__ = ["Delivery", "Entry", "delivery_of", "entries_of", "entry_of", "entry_place", "plain_deliveries"]

T_co = TypeVar("T_co", covariant=True, default=Any)
"""The type of a decoded body."""


_new = tuple.__new__
"""Makes a named tuple of all its values in a third of the time."""


class Entry(NamedTuple):
    """An entry of the ready stream. An entry without an id is foreign: Lisa did not write it."""

    entry: str
    id: str | None = None
    due_ms: int = 0
    attempt: int = 0
    group: str | None = None
    at_ms: int | None = None
    alone: bool = False
    """Whether it must run alone in its process: workers died with this message, or with others that ran beside it."""

    @property
    def made_ms(self) -> int:
        """When it was added, in ms of the server's clock; if that was set back, the time of the entry before it."""
        return int(self.entry.partition("-")[0])


class Delivery(NamedTuple, Generic[T_co]):
    """A message that is delivered to a consumer.

    No other consumer of the group gets it until it is acked, nacked or rejected, or its lease runs out.
    """

    topic: str
    group: str
    id: str
    body: bytes
    headers: Mapping[str, str]
    attempt: int
    """1 for the first delivery in this group."""
    due_ms: int
    """When the message, or its retry, was due. Server time, in ms."""
    sent_ms: int
    entry: Entry
    """The entry, which fences acks."""
    shard: str = ""
    """The shard of the topic; empty if the topic has one shard."""
    ttl_ms: int | None = None
    """For how long after its own due time, `entry.due_ms`, the message may be delivered; None for ever."""
    max_retries: int | None = None
    """Most retries: the message's limit, else the topic's. None if the delivery was not read."""
    value: T_co = None  # type: ignore[assignment]
    """The body as the type that the handler or the consumer asked for by `body`; None if they did not."""
    follow_ups: FollowUps | None = None
    """Where `then` puts what follows; None if the delivery was not read by a consumer that acks it."""

    @property
    def is_last_attempt(self) -> bool:
        """Whether a failure makes the message garbage. A worker that dies may still cause further deliveries."""
        return self.max_retries is not None and self.attempt > self.max_retries

    @property
    def alone(self) -> bool:
        """Whether it should be handled alone, as it may have killed consumers before."""
        return self.entry.alone

    @property
    def key(self) -> str | None:
        """The key of the message, of which the topic may limit what is in flight; None for none."""
        return key_of(self.headers)

    @property
    def deaths(self) -> tuple[Death, ...]:
        """Of a dead letter: where, why and how often it has died, newest first."""
        return read_deaths(self.headers)

    @property
    def place(self) -> tuple[str, str, str]:
        """Identifies the delivery among those of one consumer."""
        return self.topic, self.shard, self.entry.entry

    @property
    def follow_up(self) -> Message | None:
        """The message that `then` was called with; None without one."""
        found = self.follow_ups.get(self.entry.entry) if self.follow_ups else None
        return found.message if found else None

    def then(
        self,
        body: Any,
        *,
        delay: Duration | None = None,
        at: datetime | None = None,
        at_local: datetime | str | None = None,
        tz: str | None = None,
        id: str | None = None,
        ttl: Duration | None = None,
        max_retries: int | None = None,
        priority: int | None = None,
        headers: Mapping[str, str] | None = None,
        key: str | None = None,
    ) -> None:
        """Sends a message to the same topic when this delivery is acked, in the same step; see `Message`.

        Nothing is sent if the delivery is nacked, rejected or given back, or if its ack is stale. The message has the
        id of this one, unless `id` names another, which a topic of several shards does not allow. Call it before the
        ack; a second call replaces what the first has set. Nothing is inherited: pass `key=delivery.key` to keep the
        key. `AckOutcome` says when the message is not sent. Raises InvalidInput.
        """
        if self.follow_ups is None:
            raise InvalidInput("delivery", self, "one that a worker or a consumer has read, and acks")
        message = Message(
            body=body,
            delay=delay,
            at=at,
            at_local=at_local,
            tz=tz,
            id=None if id == self.id else id,
            ttl=ttl,
            max_retries=max_retries,
            priority=priority,
            headers=headers,
            key=key,
        )
        self.follow_ups.set(self.entry.entry, self.id, message)

    def __repr__(self) -> str:
        # Logs must not contain bodies and headers.
        return (
            f"Delivery(topic={self.topic!r}, group={self.group!r}, id={self.id!r}, attempt={self.attempt}, "
            f"due_ms={self.due_ms}, sent_ms={self.sent_ms})"
        )

    def json(self) -> Any:
        """The body decoded as JSON; raises ValueError if it is not."""
        return json.loads(self.body)

    def text(self) -> str:
        """The body decoded as UTF-8; raises UnicodeDecodeError if it is not."""
        return self.body.decode()


def delivery_of(
    keys: ShardKeys,
    group: str,
    entry: Entry,
    record: Record,
    max_retries: int | None = None,
    *,
    follow_ups: FollowUps | None = None,
) -> Delivery:
    """The delivery of an entry and its record; `max_retries` are those of the topic."""
    sent_ms, due_ms, body, ttl_ms, own_retries, _, headers = record
    due_ms = entry.at_ms or due_ms
    if own_retries is not None:
        max_retries = own_retries
    of_message = entry.id or "", body, headers, entry.attempt, due_ms, sent_ms
    return _new(Delivery, (keys.topic, group, *of_message, entry, keys.shard, ttl_ms, max_retries, None, follow_ups))


_NO_HEAD = bytes(HEAD_BYTES)
"""The head of no plain record."""


def plain_deliveries(
    keys: ShardKeys,
    group: str,
    entries: Sequence[Entry],
    records: Sequence[bytes | None],
    max_retries: int | None = None,
    *,
    follow_ups: FollowUps | None = None,
) -> list[Delivery | None]:
    """Returns the deliveries of entries, in the order of their stream, whose records have neither limits nor headers.

    None for others. It takes a third of the time of `unpack_record` and `delivery_of`, which a consumer would spend.
    """
    topic, shard, deliveries = keys.topic, keys.shard, list[Delivery | None]()
    # Messages that are read together were often sent together, with equal heads, and became ready in the same ms.
    head, is_plain, sent_ms, due_ms, made, made_ms = _NO_HEAD, False, 0, 0, "-", 0
    for entry, data in zip(entries, records, strict=True):
        name, id, entry_due_ms, attempt, of_group, at_ms, _ = entry
        if data and id is not None and (of_group is None or of_group == group):
            if not data.startswith(head):
                head, is_plain = _NO_HEAD, False
                if len(data) >= HEAD_BYTES:
                    version, sent_high, sent_low, due_high, due_low, flags = unpack_head(data)
                    sent_ms, due_ms = sent_high << 32 | sent_low, due_high << 32 | due_low
                    if not name.startswith(made):
                        made = name[: name.index("-") + 1]
                        made_ms = int(made[:-1])
                    if not flags and version == VERSION and made_ms >= sent_ms:
                        # Entries ascend, so this also holds for the next ones with the same head.
                        head, is_plain = data[:HEAD_BYTES], True
            if is_plain and due_ms == entry_due_ms:
                body, at = data[HEAD_BYTES:], at_ms or due_ms
                row: Any = (
                    *(topic, group, id, body, {}, attempt, at, sent_ms),
                    *(entry, shard, None, max_retries, None, follow_ups),
                )
                deliveries.append(_new(Delivery, row))
                continue
        deliveries.append(None)
    return deliveries


def entry_place(entry: str) -> tuple[int, int]:
    """Sort key of an entry in its stream: its id is two numbers, so that 9-0 comes before 10-0."""
    milliseconds, _, number = entry.partition("-")
    return int(milliseconds), int(number or 0)


_PLAIN_VALUES = 6
"""The fields of most entries, all but retries: id, due and n, each with its value. To know them halves the time."""

_DIGITS = 15
_LIMIT = 10**_DIGITS
"""Above every valid time and attempt, and still exact in Lua."""


def _number(value: bytes) -> int:
    number = int(value)
    if not 0 <= number < _LIMIT:
        raise ValueError(value)
    return number


def entries_of(rows: Iterable[tuple[bytes, list[bytes] | None]]) -> list[Entry]:
    """Reads entries of the ready stream; a foreign or damaged one has no id."""
    entries = []
    # Many that are read together were due at the same time.
    last_due, due_ms = None, 0
    for entry, values in rows:
        # Most are plain, and read here: a call for each would take as long as all else.
        if values and len(values) == _PLAIN_VALUES:
            id_name, id, due_name, due, attempt_name, attempt = values
            if attempt == b"1" and id and id_name == b"id" and due_name == b"due" and attempt_name == b"n":
                if due != last_due and due.isdigit() and len(due) <= _DIGITS:
                    last_due, due_ms = due, int(due)
                if due == last_due:
                    try:
                        entries.append(_new(Entry, (entry.decode(), id.decode(), due_ms, 1, None, None, False)))
                    except UnicodeDecodeError:
                        entries.append(Entry(entry.decode()))
                    continue
        entries.append(entry_of(entry, values))
    return entries


def entry_of(entry: bytes, values: list[bytes] | None) -> Entry:
    """Reads one entry, as `entries_of` does."""
    name = entry.decode()
    try:
        fields = dict(zip(*[iter(values or ())] * 2, strict=True))
        return Entry(
            entry=name,
            id=fields[b"id"].decode() or None,
            due_ms=_number(fields[b"due"]),
            attempt=_number(fields[b"n"]),
            group=fields[b"g"].decode() if b"g" in fields else None,
            at_ms=_number(fields[b"at"]) if b"at" in fields else None,
            alone=b"alone" in fields,
        )
    except (KeyError, ValueError):
        return Entry(name)
