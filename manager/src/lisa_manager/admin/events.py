"""Recent events of managers, by topic: each manager publishes them once a second, and keeps none."""

import json
from collections.abc import Mapping
from dataclasses import astuple, dataclass, fields
from typing import Any

__all__ = ["TopicEvents", "read_events", "write_events"]

_LIMIT = 10**15


@dataclass(slots=True)
class TopicEvents:
    """What one manager did to one topic in about a second."""

    ready: int = 0
    """Messages and retries that it made ready."""
    late_ms: int = 0
    """The sum of the times between when they were due and when it did that, in ms."""
    latest_ms: int = 0
    """The longest of these times, in ms."""
    timeouts: int = 0
    """Deliveries that it took back as their leases had ended."""
    ended: int = 0
    """Messages that it found expired, or given up."""


def write_events(events: Mapping[str, TopicEvents]) -> bytes:
    """As published."""
    return json.dumps({topic: astuple(of) for topic, of in events.items()}, separators=(",", ":")).encode()


def read_events(message: bytes) -> dict[str, TopicEvents] | None:
    """The published events; None for damaged messages."""
    try:
        content = json.loads(message)
        return {topic: TopicEvents(*map(_number, counts)) for topic, counts in content.items() if _is_row(counts)}
    except (ValueError, AttributeError, RecursionError):
        return None


def _is_row(counts: Any) -> bool:
    return isinstance(counts, list) and len(counts) == len(fields(TopicEvents))


def _number(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _LIMIT:
        raise ValueError(value)
    return value
