"""Logging of the programs: one record on stderr for each event, as a line of text or as a JSON object.

Each call names its event, and gives its values as fields, for JSON and for the formatters of other programs:

    logger.info("expired %d messages of %s", count, tag, extra=event("messages_expired", topic=topic, count=count))
"""

import json
import logging
import math
import textwrap
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from lisa_common.escaping import safe_text, shown, shown_lines

__all__ = ["configure_logging", "event", "is_json", "moment"]


def event(name: str, **fields: Any) -> dict[str, Any]:
    """The `extra` of a log call: the name of its event, and its fields, without those that are None or "".

    Fields are named alike everywhere: topic, shard, group, id, attempt, of, retry_at, consumer, job, count, error.
    """
    return {"event": name} | {field: value for field, value in fields.items() if value is not None and value != ""}


def moment(ms: float) -> str:
    """A time in ms since 1970 in UTC, as records begin with it: "2026-01-31T12:00:00.000Z"."""
    try:
        time_ = datetime.fromtimestamp(ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(ms)
    return time_.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class _TextFormatter(logging.Formatter):
    """Prints each record on one line, and a traceback below it on indented lines, unlike any record."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s.%(msecs)03dZ %(levelname)-7s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S")
        self.converter = time.gmtime

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - as in logging
        return shown(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802
        return _below(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:  # noqa: N802
        return _below(super().formatStack(stack_info))


def _below(text: str) -> str:
    return textwrap.indent(shown_lines(text), "  ", lambda _: True)


_OF_RECORDS = {*vars(logging.makeLogRecord({})), "asctime", "message", "taskName"}
"""What every record has; anything else was given as `extra`."""


class _JsonFormatter(logging.Formatter):
    """Prints each record as one JSON object on one line of ASCII."""

    def format(self, record: logging.LogRecord) -> str:
        document = {
            "time": moment(record.created * 1000),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": "message",
            "message": record.getMessage(),
        }
        # What a handler's own calls give as `extra` must not replace these.
        reserved = {*document, "traceback", "stack"} - {"event"}
        for name, value in vars(record).items():
            if name not in _OF_RECORDS:
                document[f"{name}_" if name in reserved else name] = value
        if record.exc_info:
            document["traceback"] = self.formatException(record.exc_info)
        if record.stack_info:
            document["stack"] = self.formatStack(record.stack_info)
        # JSON leaves DEL as it is, though a terminal obeys it.
        return json.dumps(_clean(document), allow_nan=False).replace("\x7f", "\\u007f")


_DEPTH = 8
"""Deeper values are shown as text: they may contain themselves."""


def _clean(value: Any, depth: int = 0) -> Any:
    """Converts a value for JSON: text without lone surrogates, other objects as their text."""
    if value is None or isinstance(value, bool):
        return value
    # Subclasses, such as those of enumerations, as what they are.
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    if depth < _DEPTH and isinstance(value, Mapping):
        return {_text(name): _clean(each, depth + 1) for name, each in value.items()}
    if depth < _DEPTH and isinstance(value, list | tuple | set | frozenset):
        return [_clean(each, depth + 1) for each in value]
    return _text(value)


def _text(value: Any) -> str:
    return safe_text(value).encode("utf-8", "backslashreplace").decode()


def configure_logging(level: str, form: str = "text") -> None:
    """Sets up logging for a program, as text or JSON. Times are in UTC, from this machine's clock."""
    handler = logging.StreamHandler()
    handler.setFormatter(_JsonFormatter() if form == "json" else _TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    # They would log each request, with its whole URL, and the headers of each answer: both often hold a secret.
    for name in ("httpx", "httpcore"):
        logging.getLogger(name).setLevel(logging.WARNING)


def is_json() -> bool:
    """Whether this program logs JSON."""
    return any(isinstance(handler.formatter, _JsonFormatter) for handler in logging.getLogger().handlers)
