"""Fields of schedules as people write them, in options and in TOML files."""

import sys
import tomllib
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from lisa_common.cli.parse import read_duration, read_moment
from lisa_common.cli.program import Declined
from lisa_common.errors import InvalidInput, OmittedBytes
from lisa_common.validation import moment_ms

__all__ = ["read_schedule_file", "value_of"]

_DURATIONS: Final = {"every", "ttl", "catchup_window", "catchup_within", "jitter"}
_MOMENTS: Final = {"start": "from", "until": "until"}
_NUMBERS: Final = {"max_retries", "priority"}
_NONE: Final = {"ttl", "max_retries", "priority", "start", "until", "catchup_within"}
_EXPECTED: Final = "a table for each schedule, as in [schedules.orders.nightly]"
_MAX_FILE_BYTES: Final = 256 * 1024 * 1024


def value_of(field: str, text: str, default: object) -> Any:
    """The value of an option: `default` for the text "default"; None for "none" where a field may have none."""
    if text == "default" and field != "body":
        return default
    if text == "none" and field in _NONE:
        return None
    if field in _DURATIONS:
        return read_duration(field, text)
    if field in _MOMENTS:
        return _moment(field, text)
    if field in _NUMBERS:
        if not text.isascii() or not text.isdigit() or len(text) > 9:  # noqa: PLR2004 - more than any bound
            raise InvalidInput(field, text, "a whole number from 0 on")
        return int(text)
    return text


def read_schedule_file(path: Path) -> dict[str, dict[str, dict[str, Any]]]:
    """The schedules of a TOML file, or of standard input for "-", by topic and name, with fields as `set_schedule`."""
    document = _parsed(path)
    for key in document:
        if key != "schedules":
            raise InvalidInput("key of the file", key, "schedules")
    topics = document.get("schedules", {})
    for tables in (topics, *(topics.values() if isinstance(topics, dict) else ())):
        if not isinstance(tables, dict):
            raise InvalidInput("schedules", tables, _EXPECTED)
    return {
        topic: {name: _fields(f"{topic}/{name}", table) for name, table in tables.items()}
        for topic, tables in topics.items()
    }


def _parsed(path: Path) -> dict[str, Any]:
    try:
        data = sys.stdin.buffer.read(_MAX_FILE_BYTES + 1) if str(path) == "-" else path.read_bytes()
    except OSError as error:
        raise Declined(f"cannot read {path}: {error.strerror}") from None
    if len(data) > _MAX_FILE_BYTES:
        raise InvalidInput("file", OmittedBytes(len(data)), f"at most {_MAX_FILE_BYTES} bytes")
    try:
        return tomllib.loads(data.decode("utf-8-sig"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise Declined(f"{path} is no TOML: {error}") from None


def _fields(name: str, table: object) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise InvalidInput(f"schedule {name}", table, _EXPECTED)
    fields: dict[str, Any] = {}
    for key, value in table.items():
        if key == "start":
            raise InvalidInput(f"field of schedule {name}", key, "from")
        field = "start" if key == "from" else key
        try:
            fields[field] = _value(field, value)
        except InvalidInput as error:
            raise InvalidInput(f"{error.field} of schedule {name}", error.value, error.expected) from None
    return fields


def _value(field: str, value: Any) -> Any:
    if field in _DURATIONS and isinstance(value, str):
        return read_duration(field, value)
    return _moment(field, value) if field in _MOMENTS else value


def _moment(field: str, value: Any) -> datetime:
    """Checked here, as errors of `Admin` name `from` as its argument `start`."""
    name = _MOMENTS[field]
    moment: datetime = read_moment(name, value) if isinstance(value, str) else value
    moment_ms(name, moment)
    return moment
