"""Output of commands: tables for people, plain columns for pipes, JSON for programs."""

import json
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from lisa_common.cli.columns import Column
from lisa_common.escaping import shown, shown_lines
from lisa_common.logs import moment

__all__ = [
    "folded",
    "print_json",
    "print_json_list",
    "print_table",
    "say",
    "shown_duration",
    "shown_exactly",
    "shown_moment",
]

_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s"))


def print_table(columns: Sequence[Column], rows: Iterable[Sequence[object]], *, nothing: str = "") -> None:
    """Prints a table: fitted to a terminal, else in plain columns; each row on one line.

    Prints `nothing`, if given, when there are no rows.
    """
    cells = [[shown(str(cell)) for cell in row] for row in rows]
    if not cells and nothing:
        say(nothing)
    elif sys.stdout.isatty():
        # Imported here, as only terminals need rich, which takes long.
        from rich.console import Console  # noqa: PLC0415

        from lisa_common.cli.tables import table_or_blocks  # noqa: PLC0415

        # By rich's own measure, COLUMNS=0 leaves no room for anything.
        console = Console(width=shutil.get_terminal_size().columns)
        console.print(table_or_blocks(columns, cells, console.width))
    else:
        _print_plain(columns, cells)


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


def print_json_list(items: Iterable[Any]) -> None:
    """Prints one JSON array as `print_json` does, each item as soon as it comes."""
    indent = 2 if sys.stdout.isatty() else None
    ahead = "["
    for item in items:
        print(ahead + json.dumps(item, indent=indent), end="")  # noqa: T201
        ahead = ", "
    print("]" if ahead != "[" else "[]")  # noqa: T201


def say(text: str, *, error: bool = False) -> None:
    """Prints lines; to stderr if they concern an error or progress."""
    print(shown_lines(text), file=sys.stderr if error else sys.stdout)


def folded(text: str) -> str:
    """A line of prose, folded between words if stdout is a terminal; what is to be copied stays on one line."""
    if not sys.stdout.isatty():
        return text
    width = shutil.get_terminal_size().columns
    return textwrap.fill(text, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def shown_duration(ms: float) -> str:
    """A duration in its two largest units: "2d3h", "1.5s", "250ms". `shown_exactly` leaves nothing out."""
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
    return "".join(f"{count}{unit}" for count, unit in parts[first : first + 2] if count)


def shown_exactly(ms: int) -> str:
    """A duration as `read_duration` reads it: "30s", "1d", "1h23m20s", "1m0.5s", "250ms"."""
    if 0 < ms < 1_000:  # noqa: PLR2004 - a second
        return f"{ms}ms"
    parts, rest = [], ms
    for size, unit in _UNITS[:-1]:
        count, rest = divmod(rest, size)
        parts += [f"{count}{unit}"] if count else []
    seconds, fraction = divmod(rest, 1_000)
    if rest or not ms:
        digits = f"{seconds}.{fraction:03}".rstrip("0") if fraction else str(seconds)
        parts.append(f"{digits}s")
    return "".join(parts)


def shown_moment(ms: float | None) -> str:
    """A time in UTC, to the millisecond; "-" for none."""
    return "-" if ms is None else moment(ms)
