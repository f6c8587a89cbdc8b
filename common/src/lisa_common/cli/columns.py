"""Columns of tables; apart from `tables`, which imports rich, so that commands can name theirs without it."""

from dataclasses import dataclass

__all__ = ["Column"]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table; numbers are aligned to the right."""

    title: str
    number: bool = False
    whole: bool = False
    """Its cells are never cut: for times. Numbers are never cut either."""
    least: int = 8
    """The width to which its texts may be cut, in cells."""
