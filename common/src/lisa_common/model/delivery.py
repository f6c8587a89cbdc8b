"""What a consumer reads: entries of the ready stream, and the deliveries that they make with their records."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from lisa_common.model.keys import ShardKeys
from lisa_common.model.record import Record

__all__ = ["Delivery", "Entry", "delivery_of", "entry_of", "entry_place"]


class Entry(NamedTuple):
    """An entry as read from the ready stream. Without an id it is none of ours."""

    entry: str
    id: str | None = None
    due_ms: int = 0
    attempt: int = 0
    group: str | None = None
    at_ms: int | None = None
    alone: bool = False
    """Whether nothing else is to run beside it in the same process: workers died with this message, or with others
    that ran beside it."""
    begun: bool = True
    """False: the server takes it for not begun. Workers mark what begins."""

    @property
    def made_ms(self) -> int:
        """When it was made, by the server's time in ms; where that was set back, the time of the entry before it."""
        return int(self.entry.partition("-")[0])


class Delivery(NamedTuple):
    """A message in the hands of a consumer.

    Until it is acked, nacked or rejected, or its lease runs out, no other consumer of the group has it.
    """

    topic: str
    group: str
    id: str
    body: bytes
    headers: Mapping[str, str]
    attempt: int
    """1 for the first delivery in this group."""
    due_ms: int
    """When this delivery was due: the message, or its retry. Server time, in ms."""
    sent_ms: int
    entry: Entry
    """What acks are fenced by."""
    shard: str = ""
    """Where in the topic it was read; nothing where the topic is one."""

    @property
    def alone(self) -> bool:
        """Whether it should be handled while nothing else is, as it may have killed consumers before."""
        return self.entry.alone

    @property
    def place(self) -> tuple[str, str, str]:
        """The entry that was read: what no other delivery in the same hands has."""
        return self.topic, self.shard, self.entry.entry

    def __repr__(self) -> str:
        # As it stands in logs: without the body and the headers, which are nobody's business there.
        return (
            f"Delivery(topic={self.topic!r}, group={self.group!r}, id={self.id!r}, attempt={self.attempt}, "
            f"due_ms={self.due_ms}, sent_ms={self.sent_ms})"
        )

    def json(self) -> Any:
        """The body decoded as JSON; raises ValueError when it is none."""
        return json.loads(self.body)

    def text(self) -> str:
        """The body decoded as UTF-8; raises UnicodeDecodeError when it is none."""
        return self.body.decode()


def delivery_of(keys: ShardKeys, group: str, entry: Entry, record: Record) -> Delivery:
    """The delivery that an entry and its record make."""
    due_ms = entry.at_ms or record.due_ms
    return Delivery(
        *(keys.topic, group, entry.id or "", record.body, record.headers, entry.attempt, due_ms, record.sent_ms, entry),
        keys.shard,
    )


def entry_place(entry: str) -> tuple[int, int]:
    """Where an entry stands in its stream: entry ids are two numbers, so that 9-0 comes before 10-0."""
    milliseconds, _, number = entry.partition("-")
    return int(milliseconds), int(number or 0)


_PLAIN = [b"id", b"due", b"n"]
"""Fields of an entry that is no retry, as most are: told apart, reading one takes half the time."""


_MOST = 10**15
"""Beyond every time and every attempt of ours, and still exact in Lua."""


def _number(value: bytes) -> int:
    number = int(value)
    if not 0 <= number < _MOST:
        raise ValueError(value)
    return number


def entry_of(entry: bytes, values: list[bytes] | None) -> Entry:
    """An entry of the ready stream as Redis gives it; whoever may write the stream may write any."""
    name = entry.decode()
    try:
        if values and values[::2] == _PLAIN:
            return Entry(name, values[1].decode() or None, _number(values[3]), _number(values[5]))
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
