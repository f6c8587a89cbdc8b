"""Parameters of a request: of the query, then of a form in the body."""

import re
from functools import lru_cache
from typing import Final
from urllib.parse import unquote_to_bytes

from starlette.types import Receive, Scope

from lisa_gateway.access import OPEN, Caller, caller_of
from lisa_gateway.aside import aside
from lisa_gateway.camellia.answers import Code, Failed, Misunderstood
from lisa_gateway.camellia.forms import MAX_FIELDS, is_multipart, read_multipart

__all__ = ["MAX_FORM_BYTES", "Parameters", "read_parameters"]

MAX_FORM_BYTES: Final = 4 * 1024 * 1024
"""Largest form, if `max_body_bytes` allows it: a message of 1 MiB, every byte percent-encoded, and its parameters."""

_MAX_DISCARDED = 2 * MAX_FORM_BYTES
"""How much of a larger form is read, and forgotten, before it is refused."""

_PIECES = re.compile(rb"(?s).{1,16384}(?:(?<=%)..?|(?<=%.).)?")
"""Parts that cut no escape. To decode all at once would keep other requests waiting, even from another thread."""

_NUMBER = re.compile(r"[+-]?[0-9]{1,40}")
_BITS = {64: 2**63, 32: 2**31}
_SHORT = 10
"""Decimal numbers of fewer digits fit 32 bits."""
_TRUE, _FALSE = {"true", "on", "yes", "1"}, {"false", "off", "no", "0"}
_MAX_SHOWN = 40


class Parameters:
    """The parameters of one request, by name."""

    def __init__(self, fields: dict[str, str], caller: Caller = OPEN) -> None:
        self._fields = fields
        self.caller = caller

    def has(self, name: str) -> bool:
        """Whether a parameter is present, though perhaps empty."""
        return name in self._fields

    def required_text(self, name: str) -> str:
        """A required text. Raises Misunderstood if it is missing, Failed if it is empty."""
        text = self._fields.get(name)
        if text is None:
            raise Misunderstood(f"{name}: is required")
        if not text:
            raise Failed(Code.PARAM_WRONG, f"{name} must not be empty")
        return text

    def text(self, name: str) -> str:
        """An optional text; empty by default."""
        return self._fields.get(name, "")

    def required_number(self, name: str, bits: int = 64) -> int:
        """A required whole number. Raises Misunderstood."""
        value = self.number(name, None, bits)
        if value is None:
            raise Misunderstood(f"{name}: is required")
        return value

    def number(self, name: str, default: int | None, bits: int = 64) -> int | None:
        """A whole number of so many bits; the default if it is missing or empty. Raises Misunderstood."""
        text = self._fields.get(name)
        if text is None:
            return default
        if len(text) < _SHORT and text.isascii() and text.isdigit():
            # As most are.
            return int(text)
        text = text.strip()
        if not text:
            return default
        if _NUMBER.fullmatch(text):
            number = int(text)
            if -_BITS[bits] <= number < _BITS[bits]:
                return number
        raise Misunderstood(f"{name}: must be a whole number of {bits} bits; got {_shown(text)}")

    def positive(self, name: str, default: int, bits: int = 64) -> int:
        """A whole number; the default also for 0 and less. Raises Misunderstood."""
        number = self.number(name, None, bits)
        return number if number is not None and number > 0 else default

    def flag(self, name: str, *, default: bool) -> bool:
        """A boolean; the default if it is missing or empty. Raises Misunderstood."""
        text = self._fields.get(name, "").strip().lower()
        if not text:
            return default
        if text in _TRUE | _FALSE:
            return text in _TRUE
        raise Misunderstood(f"{name}: must be true or false; got {_shown(text)}")


async def read_parameters(scope: Scope, receive: Receive) -> Parameters:
    """Returns the parameters of a request. Raises Misunderstood for what cannot be read, Refusal for a cut body."""
    kind = _content_type(scope)
    # Also a body that means nothing here: no answer says success for a body that was cut off.
    body = await _read_body(receive)
    form = body if _has_form(scope) else b""
    more = await read_multipart(kind, body) if is_multipart(kind) else ()
    fields = await aside(len(form), lambda: _fields(scope["query_string"], form))
    for name, value in more:
        fields.setdefault(name, value)
    return Parameters(fields, caller_of(scope))


def _fields(query: bytes, form: bytes) -> dict[str, str]:
    fields: dict[str, str] = {}
    if query:
        _parse(query, fields)
    if form:
        _parse(form, fields)
    return fields


def _content_type(scope: Scope) -> bytes:
    """The type of a body that may be a form; else empty."""
    if scope["method"] == "POST":
        for name, value in scope["headers"]:
            if name == b"content-type":
                return bytes(value)
    return b""


def _has_form(scope: Scope) -> bool:
    return _means_form(_content_type(scope))


@lru_cache(maxsize=64)
def _means_form(given: bytes) -> bool:
    kind, _, more = given.decode("latin-1").partition(";")
    if kind.strip().lower() != "application/x-www-form-urlencoded":
        return False
    charset = more.partition("charset=")[2].strip().strip('"').lower()
    if charset not in {"", "utf-8", "utf8"}:
        raise Misunderstood(f"Content-Type: charset must be utf-8; got {_shown(charset)}", 415)
    return True


async def _read_body(receive: Receive) -> bytes:
    chunks: list[bytes] = []
    size = 0
    more = True
    while more:
        message = await receive()
        chunk, more = message.get("body", b""), message.get("more_body", False)
        size += len(chunk)
        if size > _MAX_DISCARDED:
            break
        if size <= MAX_FORM_BYTES:
            chunks.append(chunk)
        else:
            # Most clients read an answer only after they have sent all.
            chunks.clear()
    if size > MAX_FORM_BYTES:
        raise Misunderstood(f"body: must be at most {MAX_FORM_BYTES} bytes", 413, {"Connection": "close"})
    return b"".join(chunks)


def _parse(encoded: bytes, fields: dict[str, str]) -> None:
    """Adds the fields of a form; the first of a name counts."""
    if encoded.count(b"&") >= MAX_FIELDS:
        raise Misunderstood(f"body: must have at most {MAX_FIELDS} parameters")
    if encoded.isascii() and b"%" not in encoded and b"+" not in encoded:
        # One look at the whole spares several at each part.
        _parse_plain(encoded.decode(), fields)
        return
    for part in encoded.split(b"&"):
        if part:
            encoded_name, _, encoded_value = part.partition(b"=")
            name = _decode("a name", encoded_name)
            fields.setdefault(name, _decode(name, encoded_value))


def _parse_plain(text: str, fields: dict[str, str]) -> None:
    pairs = text.split("&")
    try:
        # Of equal names, a dictionary keeps the last.
        given = dict([pair.split("=", 1) for pair in reversed(pairs)])
    except ValueError:
        # There are names without a value.
        given = {name: value for name, _, value in [pair.partition("=") for pair in reversed(pairs) if pair]}
    fields.update({**given, **fields})


def _decode(name: str, encoded: bytes) -> str:
    try:
        pieces = _PIECES.finditer(encoded)
        return b"".join(unquote_to_bytes(piece[0].replace(b"+", b" ")) for piece in pieces).decode()
    except UnicodeDecodeError:
        raise Misunderstood(f"{name}: must be UTF-8, percent-encoded") from None


def _shown(text: str) -> str:
    return repr(text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "…")
