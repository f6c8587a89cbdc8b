"""Receipts: all that a delivery needs to be settled, at any gateway, in one opaque text.

A receipt is base64url of a keyed hash (16 bytes of BLAKE2b) and lines of text. The key is a setting that all gateways
share. Without it the hash still tells damage, and that a receipt is of another prefix; but then a consumer of a topic
could make up receipts for that topic.
"""

import base64
import hashlib
import hmac
import re

from lisa_common.errors import InvalidInput
from lisa_common.model.delivery import Entry
from lisa_common.validation import check_id
from lisa_consumer import Delivery, Held

__all__ = ["Receipts"]

_HASH_BYTES = 16
_NAME = r"([A-Za-z0-9_.:-]{1,128})"
_NUMBER = r"([0-9]{1,15})"
_FACTS = re.compile(
    rf"{_NAME}\n((?:[0-9]{{1,4}}(?:\.[0-9]{{1,4}})?)?)\n{_NAME}\n([0-9]{{1,20}}-[0-9]{{1,20}})\n{_NUMBER}\n{_NUMBER}\n{_NAME}\n"
    r"([^\n]+)"
)
"""Topic, shard, group, entry, due time, attempt, consumer and id, a line each; no other text is taken."""


class Receipts:
    """Writes and reads receipts."""

    def __init__(self, prefix: str, key: str) -> None:
        digest = hashlib.sha256(f"lisa receipts\n{prefix}\n{key}".encode()).digest()
        self._hasher = hashlib.blake2b(key=digest, digest_size=_HASH_BYTES)

    def write(self, delivery: Delivery, consumer: str) -> str:
        """The receipt of a delivery."""
        entry = delivery.entry
        data = (
            f"{delivery.topic}\n{delivery.shard}\n{delivery.group}\n"
            f"{entry.entry}\n{entry.due_ms}\n{entry.attempt}\n{consumer}\n{delivery.id}"
        ).encode()
        return base64.urlsafe_b64encode(self._hash(data) + data).rstrip(b"=").decode()

    def read(self, receipt: str) -> Held:
        """The delivery of a receipt. Raises InvalidInput."""
        try:
            content = base64.b64decode(receipt + "=" * (-len(receipt) % 4), altchars=b"-_", validate=True)
            mark, data = content[:_HASH_BYTES], content[_HASH_BYTES:]
            facts = _FACTS.fullmatch(data.decode()) if hmac.compare_digest(mark, self._hash(data)) else None
        except ValueError:
            facts = None
        if facts is None:
            raise InvalidInput("receipt", receipt, "the unchanged receipt of a delivery from this gateway")
        topic, shard, group, entry, due, attempt, consumer, id = facts.groups()
        found = Entry(entry, check_id(id), int(due), int(attempt))
        delivery = Delivery(topic, group, id, b"", {}, found.attempt, found.due_ms, 0, found, shard)
        return Held(delivery, consumer)

    def _hash(self, data: bytes) -> bytes:
        hasher = self._hasher.copy()
        hasher.update(data)
        return hasher.digest()
