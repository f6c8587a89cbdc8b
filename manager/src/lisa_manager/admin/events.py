"""Recent events of managers, by topic: each manager publishes them once a second, and keeps none."""

import json
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

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


_Count = Annotated[int, Field(strict=True, ge=0, lt=_LIMIT)]
_PUBLISHED = TypeAdapter(dict[str, tuple[_Count, _Count, _Count, _Count, _Count]])


def read_events(message: bytes) -> dict[str, TopicEvents] | None:
    """The published events; None for damaged messages, and those of releases that count something else."""
    try:
        return {topic: TopicEvents(*counts) for topic, counts in _PUBLISHED.validate_json(message).items()}
    except ValidationError:
        return None
