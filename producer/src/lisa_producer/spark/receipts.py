"""Receipts name deliveries, so that a task can nack or reject the rows of a stream."""

import json
from collections.abc import Iterable

from lisa_common.errors import InvalidInput
from lisa_common.model.delivery import Entry
from lisa_common.validation import check_id, check_name

__all__ = ["read_receipt", "receipt_of", "receipts_of"]


def receipt_of(topic: str, group: str, shard: str, entry: Entry) -> str:
    """Names a delivery, so that a task can nack or reject it."""
    return receipts_of(topic, group, shard, [entry])[0]


def receipts_of(topic: str, group: str, shard: str, entries: Iterable[Entry]) -> list[str]:
    """Names deliveries of one shard."""
    begin = json.dumps([topic, group, shard], separators=(",", ":"))[:-1]
    return [f'{begin},"{e.entry}",{json.dumps(e.id)},{e.due_ms},{e.attempt}]' for e in entries]


def read_receipt(receipt: object) -> tuple[str, str, str, Entry]:
    """Topic, group, shard and entry of a receipt; raises InvalidInput."""
    try:
        topic, group, shard, entry, id, due_ms, attempt = json.loads(str(receipt))
        named = Entry(str(entry), check_id(id), int(due_ms), int(attempt))
        return check_name("topic", topic), check_name("group", group), str(shard), named
    except (ValueError, TypeError, ArithmeticError, RecursionError):
        raise InvalidInput("receipt", receipt, "the receipt of a row of a stream") from None
