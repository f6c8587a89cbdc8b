"""Parameters of a request: of the query, then of a form in the body."""

import re
from typing import Final

from starlette.requests import Request

from lisa_common.errors import InvalidInput
from lisa_common.validation import MAX_DELAY_S
from lisa_gateway.access import OPEN, Caller, caller_of
from lisa_gateway.aside import aside
from lisa_gateway.camellia.answers import Code, Failed, Misunderstood
from lisa_gateway.camellia.multipart import MAX_FIELDS, is_multipart, read_multipart
from lisa_gateway.forms import URLENCODED, read_fields

__all__ = ["MAX_FORM_BYTES", "MAX_MS", "Parameters", "check_ms", "read_parameters"]

MAX_MS: Final = MAX_DELAY_S * 1000

MAX_FORM_BYTES: Final = 4 * 1024 * 1024
"""Largest form, if `max_body_bytes` allows it: a message of 1 MiB, every byte percent-encoded, and its parameters."""

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


def check_ms(name: str, value: int) -> None:
    """Raises Failed for a time that is too long."""
    if value > MAX_MS:
        raise Failed(Code.PARAM_WRONG, f"{name} must be at most {MAX_MS}, ten years; got {value}")


async def read_parameters(request: Request) -> Parameters:
    """Returns the parameters of a request. Raises Misunderstood for what cannot be read, Refusal for a cut body."""
    # Another body is read as well: no answer says success for a body that was cut off.
    body = await request.body() if request.method == "POST" else b""
    if len(body) > MAX_FORM_BYTES:
        raise Misunderstood(f"body: must be at most {MAX_FORM_BYTES} bytes", 413)
    kind = request.headers.get("content-type", "") if request.method == "POST" else ""
    form = body if _is_urlencoded(kind) else b""
    more = await read_multipart(kind, body) if is_multipart(kind) else {}
    try:
        more |= await aside(len(form), lambda: read_fields(form, MAX_FIELDS))
        fields = more | read_fields(request.scope["query_string"], MAX_FIELDS)
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
    kind, _, more = content_type.partition(";")
    if kind.strip().lower() != URLENCODED:
        return False
    charset = more.partition("charset=")[2].strip().strip('"').lower()
    if charset not in {"", "utf-8", "utf8"}:
        raise Misunderstood(f"Content-Type: charset must be utf-8; got {_shown(charset)}", 415)
    return True


def _shown(text: str) -> str:
    return repr(text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "…")
