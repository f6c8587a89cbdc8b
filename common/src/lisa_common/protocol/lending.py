"""Calls of a consumer that lends its deliveries to clients, which end them by the id of the message alone.

A loan is a string beside the topic. It names the delivery that a client has, so that any process can end it, fenced by
its entry as always. It expires soon after the lease; a lost loan costs one more delivery.
"""

import json
from dataclasses import dataclass
from typing import Any

from lisa_common.model.delivery import Entry
from lisa_common.model.keys import ShardKeys
from lisa_common.model.record import Record, read_record
from lisa_common.protocol.call import Call, command
from lisa_common.protocol.scripts import load

__all__ = [
    "Loan",
    "drop_loan",
    "drop_note",
    "end_window",
    "lent_record",
    "read_loan",
    "read_note",
    "store_loan",
    "store_note",
    "store_text",
]

SLACK_MS = 60_000
"""How long a loan outlives its lease: an ack may still be late, and take its message out of the retries."""


@dataclass(frozen=True, slots=True)
class Loan:
    """A delivery that is lent, and the consumer that has read it."""

    entry: Entry
    consumer: str


def store_loan(keys: ShardKeys, group: str, loan: Loan, lease_ms: int) -> Call[bool]:
    """Stores a loan for as long as its lease, and a minute more. Replaces that of an earlier delivery."""
    entry = loan.entry
    # None of these needs an escape.
    value = f'["{entry.entry}",{entry.due_ms},{entry.attempt},"{loan.consumer}"]'
    return store_text(keys.loan(group, entry.id or ""), value, lease_ms + SLACK_MS)


def store_text(key: str, text: str, keep_ms: int) -> Call[bool]:
    """Stores a text for `keep_ms`, also in a full server; replaces an earlier one."""
    lend = load("lend")
    return Call(("EVALSHA", lend.sha, "1", key, text, str(keep_ms)), bool, lend)


def read_loan(keys: ShardKeys, group: str, id: str) -> Call[Loan | None]:
    """The loan of a message; None if there is none, or if it is damaged."""

    def decode(reply: bytes | None) -> Loan | None:
        if reply is None:
            return None
        try:
            entry, due_ms, attempt, consumer = json.loads(reply)
            return Loan(Entry(str(entry), id, int(due_ms), int(attempt)), str(consumer))
        except (ValueError, TypeError):
            return None

    return command("GET", keys.loan(group, id), decode=decode)


def drop_loan(keys: ShardKeys, group: str, id: str) -> Call[int]:
    """Forgets a loan."""
    return command("UNLINK", keys.loan(group, id), decode=int)


def lent_record(keys: ShardKeys, id: str) -> Call[Record | None]:
    """The record of a message; None if it has none, was cancelled, or cannot be read."""
    return command("HGET", keys.of("messages"), id, decode=lambda reply: read_record(reply)[0])


def store_note(keys: ShardKeys, id: str, note: bytes, keep_ms: int) -> Call[bool]:
    """Keeps a note on a message for `keep_ms`."""
    return command("SET", keys.note(id), note, "PX", keep_ms, decode=bool)


def read_note(keys: ShardKeys, id: str) -> Call[bytes | None]:
    """The note on a message; None if it is missing or has expired."""

    def decode(reply: Any) -> bytes | None:
        return reply if isinstance(reply, bytes) else None

    return command("GET", keys.note(id), decode=decode)


def drop_note(keys: ShardKeys, id: str) -> Call[int]:
    """Forgets a note."""
    return command("UNLINK", keys.note(id), decode=int)


def end_window(keys: ShardKeys, id: str) -> Call[int]:
    """Ends the dedup window of an id, as `finished.lua` does; without effect if it has none."""
    return command("ZADD", keys.of("finished"), "XX", 0, id, decode=int)
