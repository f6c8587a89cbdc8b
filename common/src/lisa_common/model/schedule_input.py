"""Schedules as callers write them: durations in seconds, moments as datetimes, bodies of any kind."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from lisa_common.errors import InvalidInput
from lisa_common.model.schedule import MAX_BODY_BYTES, Schedule
from lisa_common.validation import body_bytes, duration_ms, moment_ms

__all__ = ["FIELDS", "stored_fields"]


def _ms(field: str) -> Callable[[Any], int]:
    """Reads a duration by the bounds that `Schedule` has for it."""
    limits = Schedule.model_fields[f"{field}_ms"].metadata
    low_ms = next(limit.ge for limit in limits if hasattr(limit, "ge"))
    high_ms = next(limit.le for limit in limits if hasattr(limit, "le"))
    return lambda value: duration_ms(field, value, low_ms=low_ms, high_s=high_ms / 1_000)


def _moment(field: str) -> Callable[[Any], int]:
    return lambda value: moment_ms(field, value)


_READ: Final[Mapping[str, tuple[str, Callable[[Any], Any]]]] = {
    "every": ("every_ms", _ms("every")),
    "ttl": ("ttl_ms", _ms("ttl")),
    "catchup_window": ("catchup_window_ms", _ms("catchup_window")),
    "catchup_within": ("catchup_within_ms", _ms("catchup_within")),
    "jitter": ("jitter_ms", _ms("jitter")),
    "start": ("from_ms", _moment("start")),
    "until": ("until_ms", _moment("until")),
    "body": ("body", lambda value: body_bytes(value, MAX_BODY_BYTES)),
}

FIELDS: Final = tuple(
    {stored: name for name, (stored, _) in _READ.items()}.get(field, field)
    for field in Schedule.model_fields
    if field not in {"topic", "name"}
)
"""What a caller may set."""


def stored_fields(changes: Mapping[str, Any], default: object = None) -> dict[str, Any]:
    """The fields of `Schedule` for what a caller sets. A value that is `default` stays as it is.

    Raises InvalidInput. None stands for no value where the field may have none.
    """
    fields: dict[str, Any] = {}
    for name, value in changes.items():
        if name not in FIELDS:
            raise InvalidInput("field of a schedule", name, f"one of {', '.join(FIELDS)}")
        stored, read = _READ.get(name, (name, None))
        is_none = value is None and Schedule.model_fields[stored].default is None
        fields[stored] = value if read is None or is_none or value is default else read(value)
    return fields
