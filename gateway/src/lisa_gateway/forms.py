"""URL-encoded fields, of queries and of the forms that calls and pages send."""

import re
from urllib.parse import unquote_to_bytes

from lisa_common.errors import InvalidInput, Verbatim

__all__ = ["URLENCODED", "media_type", "read_fields"]

URLENCODED = "application/x-www-form-urlencoded"

_PIECES = re.compile(rb"(?s).{1,16384}(?:(?<=%)..?|(?<=%.).)?")
"""Parts that cut no escape. To decode all at once would keep other requests waiting, even from another thread."""


def media_type(content_type: str) -> str:
    """The type that a header `content-type` names, without its parameters."""
    return content_type.partition(";")[0].strip().lower()


def read_fields(encoded: bytes, most: int) -> dict[str, str]:
    """Returns the fields, the first of each name; bytes that are no UTF-8 become surrogates.

    Raises InvalidInput for more than `most` fields.
    """
    count = encoded.count(b"&") + 1
    if count > most:
        raise InvalidInput("form", Verbatim(f"{count} fields"), f"at most {most} fields")
    fields: dict[str, str] = {}
    for part in encoded.split(b"&"):
        if part:
            name, _, value = part.partition(b"=")
            fields.setdefault(_decode(name), _decode(value))
    return fields


def _decode(encoded: bytes) -> str:
    pieces = _PIECES.finditer(encoded)
    decoded = b"".join(unquote_to_bytes(piece[0].replace(b"+", b" ")) for piece in pieces)
    return decoded.decode("utf-8", "surrogateescape")
