"""Checks of callers' values: each returns the value as Lisa uses it, or raises `InvalidInput`."""

import json
import math
import re
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from inspect import iscoroutinefunction
from typing import Any

from lisa_common.bodies import CodedBody, json_bytes
from lisa_common.errors import InvalidInput, OmittedBytes

__all__ = [
    "GENERATED_SUFFIX",
    "MAX_DELAY_S",
    "MAX_HEADERS_BYTES",
    "MAX_ID_BYTES",
    "MAX_NAME_LENGTH",
    "MAX_RETRIES",
    "Duration",
    "body_bytes",
    "check_bool",
    "check_bytes",
    "check_callable",
    "check_id",
    "check_int",
    "check_list",
    "check_mapping",
    "check_name",
    "check_new_id",
    "duration_ms",
    "expected_by",
    "headers_json",
    "is_id",
    "moment_ms",
    "read_address",
]

Duration = float | timedelta

MAX_NAME_LENGTH = 128
MAX_ID_BYTES = 200
MAX_DELAY_S = 10 * 366 * 86_400
MAX_RETRIES = 1_000
MAX_HEADERS_BYTES = 16_384
_MAX_PORT = 65_535
GENERATED_SUFFIX = "~"
"""Ends generated ids, and only those: they are forgotten at ack, as nobody can send them again."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_NAME = re.compile(r"[A-Za-z0-9_.:-]+")
_PYDANTIC_FRAME = re.compile(r"^(Value error,|\w+ should (be|have)) |(,| after validation, not) (unable|got|not|\d).*$")


_EXPECTED = {
    "missing": "given",
    "tuple_type": "a list",
    "list_type": "a list",
    "model_type": "an object",
    "int_parsing_size": "a whole number of at most 4,300 digits",
}
"""By the types of pydantic's errors, whose own words do not fit here."""


def check_name(field: str, value: object) -> str:
    """The name of a topic, group or consumer: 1 to 128 letters, digits or `_.:-`."""
    if not isinstance(value, str) or len(value) > MAX_NAME_LENGTH or not _NAME.fullmatch(value):
        raise InvalidInput(field, value, f"1 to {MAX_NAME_LENGTH} letters, digits or _ . : -")
    return value


def is_id(value: object) -> bool:
    """Whether a value may be a message id: printable text of 1 to 200 bytes in UTF-8."""
    if not isinstance(value, str) or len(value) > MAX_ID_BYTES or not value.isprintable():
        return False
    # A character has at most four bytes in UTF-8: most ids are so short that nobody needs to count.
    return 0 < 4 * len(value) <= MAX_ID_BYTES or 1 <= len(value.encode()) <= MAX_ID_BYTES


def check_id(value: object, field: str = "id") -> str:
    """A message id, or a text like one; see `is_id`."""
    if not isinstance(value, str) or not is_id(value):
        raise InvalidInput(field, value, f"1 to {MAX_ID_BYTES} bytes of printable text")
    return value


def check_new_id(value: object) -> str:
    """A caller's id for a new message: as `check_id`, and unlike generated ids."""
    if isinstance(value, str) and is_id(value) and not value.endswith(GENERATED_SUFFIX):
        return value
    check_id(value)
    raise InvalidInput("id", value, f"text that does not end in {GENERATED_SUFFIX!r}, which marks generated ids")


def check_int(field: str, value: object, low: int, high: int) -> int:
    """A whole number within bounds, both included."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidInput(field, value, f"a whole number from {low} to {high}")
    return value


def check_bool(field: str, value: object) -> bool:
    """A bool, and nothing else that is true or false."""
    if not isinstance(value, bool):
        raise InvalidInput(field, value, "True or False")
    return value


def check_bytes(field: str, value: object) -> bytes:
    """Bytes."""
    if not isinstance(value, bytes):
        raise InvalidInput(field, value, "bytes")
    return value


def check_mapping(field: str, value: object) -> Mapping[Any, Any]:
    """A mapping."""
    if not isinstance(value, Mapping):
        raise InvalidInput(field, value, "a mapping")
    return value


def check_list(field: str, value: object, items: str) -> list[Any]:
    """The items of an iterable. A single text is refused, though it is an iterable of texts."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InvalidInput(field, value, f"a list of {items}")
    return list(value)


def check_callable(field: str, value: object) -> None:
    """A function to call, or None. A coroutine function would do nothing when it is called."""
    if value is not None and (not callable(value) or iscoroutinefunction(value)):
        raise InvalidInput(field, value, "a plain function")


def duration_ms(field: str, value: object, *, low_ms: int = 0, high_s: float = MAX_DELAY_S) -> int:
    """A duration in seconds (`float`) or as `timedelta`, rounded up to the millisecond."""
    if (type(value) is float or type(value) is int) and 0 <= value <= high_s:
        whole = int(value * 1000)
        if whole == value * 1000 and whole >= low_ms:
            return whole
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    # The comparison also refuses NaN; it comes before ceil, which cannot take infinities.
    if isinstance(seconds, (int, float)) and not isinstance(seconds, bool) and 0 <= seconds <= high_s:
        exact = seconds * 1000
        nearest = round(exact)
        # 0.1 + 0.2 s are 300 ms, not 301: the caller did not mean a float's last bits.
        is_whole = exact == nearest or math.isclose(exact, nearest, rel_tol=1e-15, abs_tol=1e-6)
        milliseconds = nearest if is_whole else math.ceil(exact)
        if milliseconds >= low_ms:
            return milliseconds
    high = "10 years" if high_s == MAX_DELAY_S else f"{high_s:.15g} s"
    raise InvalidInput(field, value, f"seconds or a timedelta from {low_ms / 1000:g} s to {high}")


def moment_ms(field: str, value: object) -> int:
    """An aware `datetime` as milliseconds since the epoch, rounded up."""
    if not isinstance(value, datetime) or value.tzinfo is None or value.utcoffset() is None:
        raise InvalidInput(field, value, "a datetime with a time zone")
    milliseconds = -((_EPOCH - value) // _MILLISECOND)
    latest_s = time.time() + MAX_DELAY_S
    # Scripts return 0 for a duplicate.
    if not 1 <= milliseconds <= latest_s * 1000:
        raise InvalidInput(field, value, f"a time from 1970 to {datetime.fromtimestamp(latest_s, UTC):%Y-%m-%d}")
    return milliseconds


def body_bytes(body: object, max_bytes: int) -> bytes:
    """A body as stored: bytes unchanged, text as UTF-8, anything else as JSON or by its codec."""
    if isinstance(body, (bytes, bytearray, memoryview)):
        data = bytes(body)
    elif isinstance(body, str):
        data = _utf8("body", body)
    elif isinstance(body, CodedBody):
        data = body.encode()
    else:
        try:
            data = json_bytes(body)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidInput("body", body, f"bytes, text or a JSON value ({error})") from None
    if len(data) > max_bytes:
        raise InvalidInput("body", OmittedBytes(len(data)), f"at most {max_bytes} bytes")
    return data


def headers_json(headers: object) -> bytes:
    """Headers, a mapping of text to text, as JSON of at most 16 KiB; empty for none."""
    if headers is None:
        return b""
    if not isinstance(headers, Mapping) or not all(
        isinstance(key, str) and isinstance(value, str) for key, value in headers.items()
    ):
        raise InvalidInput("headers", headers, "a mapping of text to text")
    if not headers:
        return b""
    data = _utf8("headers", json.dumps(dict(headers), ensure_ascii=False, separators=(",", ":")))
    if len(data) > MAX_HEADERS_BYTES:
        raise InvalidInput("headers", OmittedBytes(len(data)), f"at most {MAX_HEADERS_BYTES} bytes")
    return data


def read_address(field: str, value: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`. An IPv6 address is in brackets; an empty host stands for every address."""
    host, colon, port = value.rpartition(":")
    is_bare_v6 = ":" in host and not (host.startswith("[") and host.endswith("]"))
    if not colon or not port.isascii() or not port.isdecimal() or int(port) > _MAX_PORT or is_bare_v6:
        raise InvalidInput(field, value, f"HOST:PORT, with a port from 0 to {_MAX_PORT}")
    return host.strip("[]"), int(port)


def expected_by(problem: Any) -> str:
    """What a value must be, from one of pydantic's errors about it: "at least 1", "a valid integer"."""
    if isinstance(cause := problem.get("ctx", {}).get("error"), InvalidInput):
        return cause.expected
    if expected := _EXPECTED.get(problem["type"]):
        return expected
    if problem["type"] == "string_pattern_mismatch":
        return f"text that matches {problem['ctx']['pattern']}"
    text = _PYDANTIC_FRAME.sub("", problem["msg"])
    return text.replace("greater than or equal to", "at least").replace("less than or equal to", "at most")


def _utf8(field: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(field, text, f"text that UTF-8 can encode ({error.reason})") from None
