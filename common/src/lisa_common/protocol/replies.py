"""The shapes that replies must have. What has another raises, which makes it an `UnreadableReply` of its call."""

from collections.abc import Iterator, Sequence
from typing import Any

__all__ = ["byte_values", "number", "numbers", "pairs", "rows"]

_KINDS = (bytes, type(None))


def number(reply: Any) -> int:
    """A whole number."""
    if type(reply) is not int:
        raise TypeError("a whole number was expected")
    return reply


def rows(reply: Any, count: int | None = None) -> list[Any]:
    """A list; of exactly `count` items, if that is given."""
    if not isinstance(reply, list):
        raise TypeError("a list was expected")
    if count is not None and len(reply) != count:
        raise ValueError(f"a list of {count} was expected, and not of {len(reply)}")
    return reply


def numbers(reply: Any, count: int) -> list[int]:
    """So many whole numbers."""
    values = rows(reply, count)
    if not set(map(type, values)) <= {int}:
        raise TypeError("whole numbers were expected")
    return values


def byte_values(reply: Any, count: int) -> list[bytes | None]:
    """So many byte strings, None for each that is not there."""
    values = rows(reply, count)
    if not all(isinstance(value, _KINDS) for value in values):
        raise TypeError("byte strings were expected")
    return values


def pairs(flat: Any) -> Iterator[tuple[Any, Any]]:
    """The pairs of a flat list; raises ValueError where the last has no second half."""
    values: Sequence[Any] = rows(flat)
    return zip(values[::2], values[1::2], strict=True)
