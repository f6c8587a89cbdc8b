"""Signatures of pushed messages, by the Standard Webhooks specification (version 1.0.0, symmetric signatures).

The signed text is `id.timestamp.body`; the signature is `v1,` and the base64 of its HMAC-SHA256. The key is what a
secret holds in base64 behind `whsec_`. Source: standardwebhooks.com, "Signature scheme".
"""

import base64
import binascii
import hashlib
import hmac
from urllib.parse import quote

from lisa_common.errors import InvalidInput, OmittedBytes

__all__ = ["Signer", "webhook_id"]

_PREFIX = "whsec_"
_LOW, _HIGH = 24, 64
"""Sizes of keys, in bytes, that the specification allows."""


class Signer:
    """Signs with one or more keys: while a secret is replaced, receivers may know either."""

    def __init__(self, secrets: str) -> None:
        """`secrets` are separated by white space. Raises InvalidInput, which does not show them."""
        self._keys = [_key(secret) for secret in secrets.split()]
        if not self._keys:
            raise InvalidInput("secret", OmittedBytes(0), f"{_PREFIX} and {_LOW} to {_HIGH} bytes in base64")

    def headers(self, id: str, timestamp_s: int, body: bytes) -> dict[str, str]:
        """The headers that a receiver checks: `webhook-id`, `-timestamp` (seconds since 1970) and `-signature`."""
        signed = f"{id}.{timestamp_s}.".encode() + body
        marks = (base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode() for key in self._keys)
        return {
            "webhook-id": id,
            "webhook-timestamp": str(timestamp_s),
            "webhook-signature": " ".join(f"v1,{mark}" for mark in marks),
        }


def webhook_id(id: str) -> str:
    """A message id as headers carry it: percent-encoded where it is not plain ASCII. The same for each attempt."""
    return quote(id, safe="!#$&'()*+,/:;=?@[]~")


def _key(secret: str) -> bytes:
    try:
        key = base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not secret.startswith(_PREFIX) or not _LOW <= len(key) <= _HIGH:
        raise InvalidInput("secret", OmittedBytes(len(secret)), f"{_PREFIX} and {_LOW} to {_HIGH} bytes in base64")
    return key
