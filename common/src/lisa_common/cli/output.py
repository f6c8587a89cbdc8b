"""Output of commands: tables for people, plain columns for pipes, JSON for programs."""

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lisa_common.escaping import shown, shown_lines
from lisa_common.logs import moment

__all__ = [
    "Column",
    "new_table",
    "print_json",
    "print_table",
    "say",
    "shown_duration",
    "shown_moment",
]

_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s"))


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table; numbers are aligned to the right."""

    title: str
    number: bool = False


def print_table(columns: Sequence[Column], rows: Iterable[Sequence[object]], *, nothing: str = "") -> None:
    """Prints a table: with lines and colours at a terminal, else in plain columns, each row on one line.

    Prints `nothing`, if given, when there are no rows.
    """
    cells = [[shown(str(cell)) for cell in row] for row in rows]
    if not cells and nothing:
        say(nothing)
    elif sys.stdout.isatty():
        Console().print(new_table(columns, cells))
    else:
        _print_plain(columns, cells)


def new_table(columns: Sequence[Column], rows: Iterable[Sequence[str]], *, one_line: bool = False) -> Table:
    """A table for a terminal; with `one_line`, cells that are too wide are cut, and not folded."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    overflow: Literal["ellipsis", "fold"] = "ellipsis" if one_line else "fold"
    for column in columns:
        justify: Literal["left", "right"] = "right" if column.number else "left"
        table.add_column(column.title, justify=justify, overflow=overflow, no_wrap=one_line)
    for row in rows:
        # As Text: rich must not read an id or an error as markup.
        table.add_row(*(Text(shown(cell)) for cell in row))
    return table


def _print_plain(columns: Sequence[Column], rows: list[list[str]]) -> None:
    lines = [[column.title.replace(" ", "_") for column in columns], *rows]
    widths = [max(len(line[at]) for line in lines) for at in range(len(columns))]
    for line in lines:
        padded = [
            cell.rjust(width) if column.number else cell.ljust(width)
            for column, cell, width in zip(columns, line, widths, strict=True)
        ]
        print("  ".join(padded).rstrip())  # noqa: T201


def print_json(document: Any) -> None:
    """Prints one JSON document, indented at a terminal."""
    print(json.dumps(document, indent=2 if sys.stdout.isatty() else None))  # noqa: T201


def say(text: str, *, error: bool = False) -> None:
    """Prints lines; to stderr if they concern an error or progress."""
    print(shown_lines(text), file=sys.stderr if error else sys.stdout)


def shown_duration(ms: float) -> str:
    """A duration in its two largest units: "2d 3h", "1.5s", "250ms"."""
    if ms < 0:
        return f"-{shown_duration(-ms)}"
    if ms < 60_000:  # noqa: PLR2004 - a minute
        return f"{ms / 1000:.3g}s" if ms >= 1_000 or not ms else f"{ms:.0f}ms"  # noqa: PLR2004 - a second
    parts = []
    rest = int(ms)
    for size, unit in _UNITS:
        count, rest = divmod(rest, size)
        parts.append((count, unit))
    first = next(at for at, (count, _) in enumerate(parts) if count)
    return " ".join(f"{count}{unit}" for count, unit in parts[first : first + 2] if count)


def shown_moment(ms: float | None) -> str:
    """A time in UTC, to the millisecond; "-" for none."""
    return "-" if ms is None else moment(ms)
