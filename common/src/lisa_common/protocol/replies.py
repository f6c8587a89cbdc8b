"""Checks the shapes of replies. An error here makes the reply an `UnreadableReply` of its call."""

from collections.abc import Iterator, Sequence
from typing import Any

from lisa_common.model.keys import text_of

__all__ = ["byte_values", "fields_of", "number", "numbers", "pairs", "rows"]

_KINDS = {bytes, type(None)}


def number(reply: Any) -> int:
    """A whole number."""
    if type(reply) is not int:
        raise TypeError("it must be a whole number")
    return reply


def rows(reply: Any, count: int | None = None) -> list[Any]:
    """A list; of exactly `count` items, if given."""
    if not isinstance(reply, list):
        raise TypeError("it must be a list")
    if count is not None and len(reply) != count:
        raise ValueError(f"it must be a list of {count} items, not {len(reply)}")
    return reply


def numbers(reply: Any, count: int | None = None) -> list[int]:
    """A list of whole numbers; of exactly `count`, if given."""
    values = rows(reply, count)
    if not set(map(type, values)) <= {int}:
        raise TypeError("it must be a list of whole numbers")
    return values


def byte_values(reply: Any, count: int) -> list[bytes | None]:
    """A list of `count` byte strings, None for each missing one."""
    values = rows(reply, count)
    if not set(map(type, values)) <= _KINDS:
        raise TypeError("it must be a list of byte strings")
    return values


def fields_of(flat: Any) -> dict[str, Any]:
    """A flat reply of names and values, as a dictionary."""
    return {text_of(name): value for name, value in pairs(flat)}


def pairs(flat: Any) -> Iterator[tuple[Any, Any]]:
    """The pairs of a flat list; raises ValueError if the last one is incomplete."""
    values: Sequence[Any] = rows(flat)
    return zip(values[::2], values[1::2], strict=True)
