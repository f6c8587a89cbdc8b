"""How commands show the records of messages, and their bodies."""

import base64
import json
import math
from typing import Any

from lisa_manager import Record

__all__ = ["excerpt", "read_body", "record_document"]

_EXCERPT = 40


def record_document(record: Record | None) -> dict[str, Any]:
    """The fields of a record for JSON; none where there is no record."""
    if record is None:
        return {}
    return {
        "sent_ms": record.sent_ms,
        "expires_ms": record.expires_ms,
        "max_retries": record.max_retries,
        "priority": record.priority,
        "headers": dict(record.headers),
        "body_bytes": len(record.body),
        "body": read_body(record.body),
    }


def excerpt(record: Record | None) -> str:
    """The beginning of a body, for a row of a table."""
    if record is None:
        return "-"
    try:
        text = record.body.decode()
    except UnicodeDecodeError:
        return f"{len(record.body):,} bytes, binary"
    return text if len(text) <= _EXCERPT else f"{text[:_EXCERPT]}…"


def read_body(body: bytes) -> dict[str, Any]:
    """The body as JSON, else as text, else as base64."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(body).decode()}
    try:
        return {"json": json.loads(text, parse_constant=lambda _: None, parse_float=_finite)}
    except (ValueError, RecursionError):
        return {"text": text}


def _finite(text: str) -> float | None:
    """A number that JSON allows; Python would also accept infinities."""
    number = float(text)
    return number if math.isfinite(number) else None
