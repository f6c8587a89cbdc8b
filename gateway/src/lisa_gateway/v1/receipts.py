"""Receipts: all that a delivery needs to be settled, at any gateway, in one opaque text.

A receipt is base64url of a keyed hash (16 bytes of HMAC-SHA256) and a JSON array. The key is a setting that all
gateways share. Without it the hash still tells damage, and that a receipt is of another prefix; but then a consumer
of a topic could make up receipts for that topic.
"""

import base64
import hashlib
import hmac
import json
import re
from collections.abc import Sequence

from lisa_common.errors import InvalidInput
from lisa_common.model.delivery import Entry
from lisa_common.validation import check_id, check_int, check_name
from lisa_consumer import Delivery, Held

__all__ = ["Receipts"]

_HASH_BYTES = 16
_ENTRY = re.compile(r"[0-9]{1,20}-[0-9]{1,20}")
_SHARD = re.compile(r"([0-9]{1,4}(\.[0-9]{1,4})?)?")
_LIMIT = 10**15


class Receipts:
    """Writes and reads receipts."""

    def __init__(self, prefix: str, key: str) -> None:
        self._key = hashlib.sha256(f"lisa receipts\n{prefix}\n{key}".encode()).digest()

    def write(self, delivery: Delivery, consumer: str) -> str:
        """The receipt of a delivery."""
        entry = delivery.entry
        facts = (
            *(delivery.topic, delivery.shard, delivery.group, delivery.id),
            *(entry.entry, entry.due_ms, entry.attempt, consumer),
        )
        data = json.dumps(facts, separators=(",", ":")).encode()
        return base64.urlsafe_b64encode(self._hash(data) + data).rstrip(b"=").decode()

    def read(self, receipt: str) -> Held:
        """The delivery of a receipt. Raises InvalidInput."""
        try:
            content = base64.b64decode(receipt + "=" * (-len(receipt) % 4), altchars=b"-_", validate=True)
            mark, data = content[:_HASH_BYTES], content[_HASH_BYTES:]
            facts = json.loads(data) if hmac.compare_digest(mark, self._hash(data)) else ()
            return _held(facts)
        except (ValueError, TypeError, RecursionError):
            raise InvalidInput("receipt", receipt, "the unchanged receipt of a delivery from this gateway") from None

    def _hash(self, data: bytes) -> bytes:
        return hmac.digest(self._key, data, "sha256")[:_HASH_BYTES]


def _held(facts: Sequence[object]) -> Held:
    topic, shard, group, id, entry, due_ms, attempt, consumer = facts
    if not (isinstance(entry, str) and _ENTRY.fullmatch(entry) and isinstance(shard, str) and _SHARD.fullmatch(shard)):
        raise ValueError(entry)
    due = check_int("due", due_ms, 0, _LIMIT)
    number = check_int("attempt", attempt, 0, _LIMIT)
    delivery = Delivery(
        topic=check_name("topic", topic),
        group=check_name("group", group),
        id=check_id(id),
        body=b"",
        headers={},
        attempt=number,
        due_ms=due,
        sent_ms=0,
        entry=Entry(entry, check_id(id), due, number),
        shard=shard,
    )
    return Held(delivery, check_name("consumer", consumer))
