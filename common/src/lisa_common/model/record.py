"""The record of a message: a value of the `messages` hash.

Layout, all numbers big-endian: version (1 byte), sent and due in ms (6 bytes each), flags (1 byte), then the fields
that the flags name, in this order: ttl in ms (6), max retries (2), priority (1), length of the headers (4) and the
headers as JSON; then the body. A cancelled record has version 0 and only the first 13 bytes, or fewer.
`lua/include/record.lua` is the twin of this file: scripts write the first 13 bytes.
"""

import json
import struct
from collections.abc import Mapping
from typing import Final, NamedTuple

from lisa_common.model.key import key_of

__all__ = [
    "HEAD_BYTES",
    "VERSION",
    "Head",
    "Record",
    "UnreadableRecord",
    "is_cancelled",
    "pack_content",
    "read_head",
    "read_record",
    "unpack_head",
    "unpack_record",
]

VERSION: Final = 1
_CANCELLED: Final = b"\0"
HEAD_BYTES: Final = 14
"""Bytes before the fields that the flags name; with no flags, before the body."""

unpack_head: Final = struct.Struct(">BHIHIB").unpack_from
"""Reads version; sent and due, each as its upper two and lower four bytes; flags. Raises struct.error."""

_HAS_TTL, _HAS_MAX_RETRIES, _HAS_PRIORITY, _HAS_HEADERS = 1, 2, 4, 8


class UnreadableRecord(Exception):
    """A record of a version that this release does not know, or a damaged one."""


class Record(NamedTuple):
    """A stored message. Times are ms of the server's clock."""

    sent_ms: int
    due_ms: int
    body: bytes
    ttl_ms: int | None
    max_retries: int | None
    priority: int
    headers: Mapping[str, str]

    @property
    def key(self) -> str | None:
        """The key of the message, None for none."""
        return key_of(self.headers)

    @property
    def expires_ms(self) -> int | None:
        """When the message expires unless it is delivered; None for never."""
        return None if self.ttl_ms is None else self.due_ms + self.ttl_ms


def pack_content(
    body: bytes,
    *,
    ttl_ms: int | None = None,
    max_retries: int | None = None,
    priority: int = 0,
    headers: bytes = b"",
) -> bytes:
    """The part of a record that the producer knows: flags, limits, headers, body."""
    if ttl_ms is None and max_retries is None and not priority and not headers:
        return b"\0" + body
    flags, parts = 0, []
    if ttl_ms is not None:
        flags |= _HAS_TTL
        parts.append(ttl_ms.to_bytes(6, "big"))
    if max_retries is not None:
        flags |= _HAS_MAX_RETRIES
        parts.append(max_retries.to_bytes(2, "big"))
    if priority:
        flags |= _HAS_PRIORITY
        parts.append(priority.to_bytes(1, "big"))
    if headers:
        flags |= _HAS_HEADERS
        parts.append(struct.pack(">I", len(headers)) + headers)
    return b"".join((bytes((flags,)), *parts, body))


def is_cancelled(data: bytes) -> bool:
    """Whether a record is cancelled: it keeps the id of its message taken until a consumer meets its last entry."""
    return data[:1] == _CANCELLED


def unpack_record(data: bytes) -> Record:
    """Reads a record; raises `UnreadableRecord`."""
    if len(data) < HEAD_BYTES or data[0] != VERSION:
        raise UnreadableRecord(f"{len(data)} bytes of version {data[0] if data else 'none'}")
    _, sent_high, sent_low, due_high, due_low, flags = unpack_head(data)
    sent_ms, due_ms, at = sent_high << 32 | sent_low, due_high << 32 | due_low, HEAD_BYTES
    ttl_ms = max_retries = None
    priority, headers = 0, dict[str, str]()
    if flags & _HAS_TTL:
        ttl_ms, at = int.from_bytes(data[at : at + 6], "big"), at + 6
    if flags & _HAS_MAX_RETRIES:
        max_retries, at = int.from_bytes(data[at : at + 2], "big"), at + 2
    if flags & _HAS_PRIORITY:
        priority, at = int.from_bytes(data[at : at + 1], "big"), at + 1
    if flags & _HAS_HEADERS:
        end = at + 4 + int.from_bytes(data[at : at + 4], "big")
        headers = _read_headers(data[at + 4 : end])
        at = end
    if at > len(data):
        raise UnreadableRecord(f"cut off after {len(data)} bytes")
    return Record(sent_ms, due_ms, data[at:], ttl_ms, max_retries, priority, headers)


def read_record(data: bytes | None) -> tuple[Record | None, str]:
    """A stored record, or what is wrong with it; neither if it is missing or cancelled."""
    if data is None or is_cancelled(data):
        return None, ""
    try:
        return unpack_record(data), ""
    except UnreadableRecord as error:
        return None, f"unreadable record: {error}"


def _read_headers(data: bytes) -> dict[str, str]:
    try:
        headers = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UnreadableRecord(f"headers: {error}") from None
    if not isinstance(headers, dict) or not all(isinstance(value, str) for value in headers.values()):
        raise UnreadableRecord("headers must be a mapping of text to text")
    return headers


class Head(NamedTuple):
    """The beginning of a record: its times, in ms. A cancelled record may have no due time."""

    due_ms: int | None
    expires_ms: int | None = None
    cancelled: bool = False
    readable: bool = True

    def is_of(self, due_ms: int) -> bool:
        """Whether an entry with this due time belongs to the message, and not to an earlier one of the same id."""
        return self.due_ms is None or self.due_ms == due_ms


_DUE_END, _TTL_END = 13, 20


def read_head(data: bytes) -> Head:
    """Reads the first 20 bytes of a record, or all of a cancelled record. Raises nothing: a head may be unreadable."""
    if is_cancelled(data):
        return Head(int.from_bytes(data[7:13], "big") if len(data) >= _DUE_END else None, cancelled=True)
    has_ttl = len(data) >= HEAD_BYTES and bool(data[HEAD_BYTES - 1] & _HAS_TTL)
    if data[:1] != bytes((VERSION,)) or len(data) < (_TTL_END if has_ttl else HEAD_BYTES):
        return Head(None, readable=False)
    due_ms = int.from_bytes(data[7:13], "big")
    return Head(due_ms, due_ms + int.from_bytes(data[14:20], "big") if has_ttl else None)
