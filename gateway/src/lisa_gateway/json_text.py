"""JSON of requests and answers: strict, and of as many values as other requests can wait for; and of settings."""

import json
from typing import Any, Final

from lisa_common.strict_json import strict_json
from lisa_gateway.aside import SMALL

__all__ = ["MAX_VALUES", "decode", "encode", "encode_exactly", "json_list"]

MAX_VALUES: Final = 100_000
"""Most values in one JSON text, nested ones included."""

_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def encode(value: Any) -> bytes:
    """A value as JSON. What UTF-8 cannot encode, such as half of a surrogate pair in a damaged id, becomes `?`.

    Raises ValueError for numbers that JSON does not have, RecursionError for what is nested too deeply.
    """
    return _encoder.encode(value).encode("utf-8", "replace")


def encode_exactly(value: Any) -> bytes:
    """As `encode`, but raises ValueError also for what UTF-8 cannot encode."""
    return _encoder.encode(value).encode()


def decode(data: bytes) -> Any:
    """JSON as a value. Raises ValueError, also for more than `MAX_VALUES`; raises RecursionError."""
    text = data.decode("utf-8-sig")
    if len(data) > SMALL and _has_many_values(text):
        raise ValueError(f"more than {MAX_VALUES:,} values")
    return strict_json(text)


def _has_many_values(text: str) -> bool:
    """Counts what begins a value, outside of strings, piece by piece: other threads get their turn in between."""
    count = start = within = 0
    while start < len(text) and count <= MAX_VALUES:
        end = start + SMALL
        while text[end - 1 : end] == "\\":
            end += 1
        parts = text[start:end].replace("\\\\", "").replace('\\"', "").split('"')
        outside = "".join(parts[within::2])
        count += outside.count(",") + outside.count("[") + outside.count("{")
        within ^= (len(parts) - 1) & 1
        start = end
    return count > MAX_VALUES


def json_list(value: Any) -> Any:
    """Reads a setting that is a list of tables: text is JSON, an empty one an empty list. Raises ValueError."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value) if value.strip() else ()
    except (ValueError, RecursionError):
        raise ValueError("a JSON list of tables") from None
