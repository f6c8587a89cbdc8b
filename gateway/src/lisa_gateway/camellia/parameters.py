"""Parameters of a request: of the query, then of a form in the body."""

import asyncio
import logging
import re
from collections.abc import AsyncGenerator
from typing import Final

from python_multipart.multipart import parse_options_header
from starlette.datastructures import Headers
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from lisa_common.errors import InvalidInput
from lisa_common.validation import MAX_DELAY_S
from lisa_gateway.access import OPEN, Caller, caller_of
from lisa_gateway.aside import aside
from lisa_gateway.camellia.answers import Code, Failed, Misunderstood
from lisa_gateway.forms import URLENCODED, media_type, read_fields

__all__ = ["MAX_FORM_BYTES", "MAX_MS", "Parameters", "check_ms", "read_parameters", "shown"]

MAX_MS: Final = MAX_DELAY_S * 1000

MAX_FORM_BYTES: Final = 4 * 1024 * 1024
"""Largest form, if `max_body_bytes` allows it: a message of 1 MiB, every byte percent-encoded, and its parameters."""

_MAX_FIELDS = 64
"""Most parameters of one form, of any kind."""

_PART = 65_536
"""Bytes that are parsed before other requests have their turn."""

# It warns of each malformed form; the answer tells its sender.
logging.getLogger("python_multipart").setLevel(logging.ERROR)

_CHARSET = re.compile(r";\s*charset\s*=\s*\"?([^\s\";]*)", re.IGNORECASE)
_NUMBER = re.compile(r"[+-]?[0-9]{1,40}")
_BITS = {64: 2**63, 32: 2**31}
_TRUE, _FALSE = {"true", "on", "yes", "1"}, {"false", "off", "no", "0"}
_MAX_SHOWN = 40


class Parameters:
    """The parameters of one request, by name."""

    def __init__(self, fields: dict[str, str], caller: Caller = OPEN) -> None:
        self._fields = fields
        self.caller = caller

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
        text = self._fields.get(name, "").strip()
        if not text:
            return default
        if _NUMBER.fullmatch(text):
            number = int(text)
            if -_BITS[bits] <= number < _BITS[bits]:
                return number
        raise Misunderstood(f"{name}: must be a whole number of {bits} bits; got {shown(text)}")

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
        raise Misunderstood(f"{name}: must be true or false; got {shown(text)}")


def check_ms(name: str, value: int) -> None:
    """Raises Failed for a time that is too long."""
    if value > MAX_MS:
        raise Failed(Code.PARAM_WRONG, f"{name} must be at most {MAX_MS}, ten years; got {value}")


async def read_parameters(request: Request) -> Parameters:
    """Returns the parameters of a request. Raises Misunderstood for what cannot be read, Refusal for a cut body."""
    # Also a body that means nothing here: no answer says success for a body that was cut off.
    body = await request.body()
    if len(body) > MAX_FORM_BYTES:
        raise Misunderstood(f"body: must be at most {MAX_FORM_BYTES} bytes", 413)
    kind = request.headers.get("content-type", "") if request.method == "POST" else ""
    form = body if _is_urlencoded(kind) else b""
    more = await _read_multipart(kind, body) if media_type(kind) == "multipart/form-data" else {}
    try:
        more |= await aside(len(form), lambda: read_fields(form, _MAX_FIELDS))
        fields = more | read_fields(request.scope["query_string"], _MAX_FIELDS)
    except InvalidInput as error:
        raise Misunderstood(str(error)) from None
    for name, value in fields.items():
        _check_utf_8("a name", name)
        _check_utf_8(name, value)
    return Parameters(fields, caller_of(request.scope))


def _check_utf_8(name: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Misunderstood(f"{name}: must be UTF-8") from None


def _is_urlencoded(content_type: str) -> bool:
    if media_type(content_type) != URLENCODED:
        return False
    charset = match[1].lower() if (match := _CHARSET.search(content_type)) else ""
    if charset not in {"", "utf-8", "utf8"}:
        raise Misunderstood(f"Content-Type: charset must be utf-8; got {shown(charset)}", 415)
    return True


async def _read_multipart(content_type: str, body: bytes) -> dict[str, str]:
    """Returns the fields of a form as browsers send it, the first of each name; what is no UTF-8 becomes surrogates.

    Raises Misunderstood for a malformed form, and for a file in it.
    """
    # The last charset counts. Starlette would guess the encoding; by this one, each character stands for its byte.
    kind = f"{content_type}; charset=latin-1"

    async def parts() -> AsyncGenerator[bytes, None]:
        for start in range(0, len(body), _PART):
            yield body[start : start + _PART]
            await asyncio.sleep(0)

    headers, limits = Headers({"content-type": kind}), {"max_fields": _MAX_FIELDS, "max_part_size": len(body)}
    parser = MultiPartParser(headers, parts(), max_files=0, **limits)
    try:
        fields = (await parser.parse()).multi_items()
    except MultiPartException as error:
        reason = f"body: must be multipart/form-data of at most {_MAX_FIELDS} texts, without files ({error.message})"
        raise Misunderstood(reason) from None
    # The parser drops a part that is cut off, and all that follows the end.
    *before, end = (b"\r\n" + body).split(b"\r\n--" + parse_options_header(kind)[1][b"boundary"], _MAX_FIELDS + 2)
    if len(before) != len(fields) + 1 or not end.startswith(b"--"):
        raise Misunderstood("body: must be multipart/form-data up to its last boundary; got a part of it")
    return {_text(name): _text(str(value)) for name, value in reversed(fields)}


def _text(text: str) -> str:
    return text.encode("latin-1").decode("utf-8", "surrogateescape")


def shown(text: str) -> str:
    """The beginning of a caller's text, for errors."""
    return repr(text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "…")
