"""The key of a message, such as a customer: the topic's policy may limit what is in flight of each.

It is stored as a header, so that records do not change. `lua/include/key.lua` reads it.
"""

from collections.abc import Mapping
from typing import Any, Final

from lisa_common.errors import InvalidInput
from lisa_common.validation import MAX_ID_BYTES, check_id, is_id

__all__ = ["KEY_HEADER", "key_of", "with_key"]

KEY_HEADER: Final = "lisa-key"


def key_of(headers: Mapping[str, str]) -> str | None:
    """The key in the headers of a message, None for none."""
    key = headers.get(KEY_HEADER)
    return key if is_id(key) else None


def with_key(headers: object, key: str | None) -> Any:
    """Headers with the key first, where scripts find it soonest. Raises InvalidInput.

    A key in the headers, as those of a delivery that is forwarded, is as good as `key`; if both are given, they must be
    equal. Headers of another type are returned as they are, to be refused.
    """
    own = headers.get(KEY_HEADER) if isinstance(headers, Mapping) else None
    if key is not None:
        check_id(key, "key")
        if own not in (None, key):
            raise InvalidInput("headers", {KEY_HEADER: own}, f"without {KEY_HEADER!r}, or with the key {key!r}")
    elif own is not None:
        if not is_id(own):
            expected = f"without {KEY_HEADER!r}, or with 1 to {MAX_ID_BYTES} bytes of printable text as its value"
            raise InvalidInput("headers", {KEY_HEADER: own}, expected)
        key = own
    if key is None or (headers is not None and not isinstance(headers, Mapping)):
        return headers
    return {KEY_HEADER: key} | dict(headers or {})
