"""Messages as lines of JSON, the input of `lisa-producer load`.

{"topic": "orders", "body": {"order": 7}, "delay": "15m", "id": "order-7", "ttl": 3600, "max_retries": 3, "priority": 0,
 "headers": {"source": "shop"}, "key": "customer-7"}

Only `body` is required, and `topic` unless the command names one. `at` replaces `delay`: a time in ISO 8601 with its
zone, or ms since 1970. `"if_exists": "replace"` replaces a message of that id which still waits. Durations are seconds,
or text such as "15m". No name may occur twice in an object.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any, BinaryIO

from lisa_common.cli.parse import read_duration, read_moment, read_ms
from lisa_common.errors import InvalidInput, OmittedBytes
from lisa_common.strict_json import strict_json
from lisa_common.validation import Duration, check_name
from lisa_producer.message import Message

__all__ = ["MAX_LINE_BYTES", "Line", "read_line", "read_lines"]

MAX_LINE_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a file. `text` is None if the line is longer than any message may be."""

    number: int
    text: bytes | None
    bytes: int
    """Size of the whole line, with its line break."""


def read_lines(file: BinaryIO) -> Iterator[Line]:
    """The lines of a file, one at a time in memory. Includes empty ones, as progress counts them."""
    number = 0
    while text := file.readline(MAX_LINE_BYTES):
        number += 1
        size = len(text)
        whole = size < MAX_LINE_BYTES or text.endswith(b"\n")
        while not text.endswith(b"\n") and (part := file.readline(MAX_LINE_BYTES)):
            size += len(part)
            text = part if not whole else text + part
        yield Line(number, text if whole else None, size)


def read_line(line: Line, topic: str | None, source: bytes | None = None) -> tuple[str, Message] | None:
    """Topic and message of a line, None for an empty one. Raises InvalidInput; the producer checks the values.

    With `source`, the name of its file, a line without an id gets one that is the same whenever the line is read there.
    """
    if line.text is None:
        raise InvalidInput("line", OmittedBytes(line.bytes), f"at most {MAX_LINE_BYTES} bytes")
    if not line.text.strip():
        return None
    fields = _object(line.text)
    if unknown := fields.keys() - {"topic", "body", *_READERS}:
        raise InvalidInput("field", min(unknown), f"one of {', '.join(('topic', 'body', *_READERS))}")
    if "body" not in fields:
        raise InvalidInput("line", fields, "a JSON object with a body")
    named = fields.get("topic", topic)
    if named is None:
        raise InvalidInput("line", fields, "a JSON object with a topic, as --topic is not given")
    options = {name: read(name, fields[name]) for name, read in _READERS.items() if fields.get(name) is not None}
    if source is not None:
        options.setdefault("id", _id_of(line.number, line.text, source))
    return check_name("topic", named), Message(body=fields["body"], **options)


def _id_of(number: int, text: bytes, source: bytes) -> str:
    """An id that an edited line does not have, nor the same line elsewhere."""
    digest = sha256(b"%b\0%d\0%b" % (source, number, text.strip()))
    return f"line-{number}-{digest.hexdigest()[:32]}"


def _object(text: bytes) -> dict[str, Any]:
    try:
        # As UTF-8 alone: Python would also take some lines of a file in UTF-16, and refuse the others.
        fields = strict_json(text.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise InvalidInput("line", text.decode("utf-8", "replace").strip(), f"a JSON object ({error})") from None
    if not isinstance(fields, dict):
        raise InvalidInput("line", fields, "a JSON object")
    return fields


def _duration(name: str, value: Any) -> Duration:
    # The producer checks values that are not text.
    return read_duration(name, value) if isinstance(value, str) else value


def _moment(name: str, value: Any) -> datetime:
    if isinstance(value, str):
        return read_moment(name, value)
    if isinstance(value, int) and not isinstance(value, bool):
        return read_ms(name, value)
    raise InvalidInput(name, value, "a time in ISO 8601 with its zone, or ms since 1970")


def _as_is(_: str, value: Any) -> Any:
    return value


_READERS: dict[str, Callable[[str, Any], Any]] = {
    "delay": _duration,
    "at": _moment,
    "id": _as_is,
    "ttl": _duration,
    "max_retries": _as_is,
    "priority": _as_is,
    "headers": _as_is,
    "key": _as_is,
    "if_exists": _as_is,
}
