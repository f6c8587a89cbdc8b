"""Tables at a terminal: each row is one line, numbers, times and headings stay whole, and what does not fit is named.

Long texts are cut in the middle first; then columns go, those that tell nothing first. Where more than a third would
have to go, each row becomes a block of lines, one for each cell.
"""

from collections.abc import Iterator, Sequence
from typing import Literal

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len, set_cell_size
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from lisa_common.cli.columns import Column

__all__ = ["in_shares", "new_table", "table_or_blocks"]

_GAP = 2
"""Spaces between columns."""

_EMPTY = {"", "-", ".", "0", "0s"}
"""Cells that tell nothing."""


Rows = Sequence[Sequence[str]]
"""Escaped cells."""


def table_or_blocks(columns: Sequence[Column], rows: Rows, width: int) -> RenderableType:
    """A table for a terminal of so many columns; below it, what does not fit."""
    kept = _kept(columns, rows, width)
    if 3 * len(kept) < 2 * len(columns):
        return Group(*_blocks(columns, rows, width))
    table, cut = _table(columns, rows, width, kept)
    missing = [column.title for at, column in enumerate(columns) if at not in kept]
    notes = [f"{what} {', '.join(titles)}" for what, titles in (("left out:", missing), ("cut:", cut)) if titles]
    if not notes:
        return table
    return Group(table, Text(f"{'; '.join(notes)} (--json has all)", style="dim"))


def new_table(columns: Sequence[Column], rows: Rows, width: int) -> Table:
    """A table for a terminal of so many columns, without a word about what does not fit."""
    return _table(columns, rows, width, _kept(columns, rows, width))[0]


def in_shares(total: int, wanted: Sequence[int]) -> list[int]:
    """Splits a total evenly; what one does not need goes to the others."""
    rooms = [0] * len(wanted)
    for place, (count, at) in enumerate(sorted((count, at) for at, count in enumerate(wanted))):
        rooms[at] = min(count, max(0, total) // (len(wanted) - place))
        total -= rooms[at]
    return rooms


def _widths(columns: Sequence[Column], rows: Rows) -> list[int]:
    return [max([cell_len(each.title), *(cell_len(row[at]) for row in rows)]) for at, each in enumerate(columns)]


def _is_whole(column: Column) -> bool:
    return column.number or column.whole


def _least(columns: Sequence[Column], rows: Rows) -> list[int]:
    return [
        size if _is_whole(column) else min(size, max(column.least, cell_len(column.title)))
        for column, size in zip(columns, _widths(columns, rows), strict=True)
    ]


def _kept(columns: Sequence[Column], rows: Rows, width: int) -> list[int]:
    """The columns that fit, by their places."""
    least = _least(columns, rows)
    empty = {at for at in range(len(columns)) if all(row[at].strip() in _EMPTY for row in rows)}
    # The first one to go is the last: texts stay longest, and the first column, which names the row, always.
    order = sorted(range(1, len(columns)), key=lambda at: (at not in empty, not _is_whole(columns[at]), -at))
    kept = list(range(len(columns)))
    for at in order:
        if sum(least[each] + _GAP for each in kept) - _GAP <= width:
            break
        kept.remove(at)
    return kept


def _table(columns: Sequence[Column], rows: Rows, width: int, kept: Sequence[int]) -> tuple[Table, list[str]]:
    """The table, and the titles of columns in which texts are cut."""
    widths, least = _widths(columns, rows), _least(columns, rows)
    texts = [at for at in kept if not _is_whole(columns[at])]
    room = width - sum(widths[at] for at in kept if at not in texts) - _GAP * (len(kept) - 1)
    first = in_shares(room, [least[at] for at in texts])
    more = in_shares(room - sum(first), [widths[at] - got for at, got in zip(texts, first, strict=True)])
    rooms = {at: got + extra for at, got, extra in zip(texts, first, more, strict=True)}
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, _GAP - 1, 0, 0))
    for at in kept:
        size = max(1, rooms.get(at, widths[at]))
        justify: Literal["left", "right"] = "right" if columns[at].number else "left"
        table.add_column(Text(_shortened(columns[at].title, size)), justify=justify, width=size, no_wrap=True)
    for row in rows:
        # As Text: rich must not read an id or an error as markup.
        table.add_row(*(Text(_shortened(row[at], rooms.get(at, widths[at]))) for at in kept))
    return table, [columns[at].title for at in texts if rooms[at] < widths[at]]


def _shortened(text: str, width: int) -> str:
    """The beginning and the end of a text, in so many cells: names of one kind often begin alike."""
    if cell_len(text) <= width:
        return text
    last = max(0, width - 1) // 2
    tail = set_cell_size(text[::-1], last)[::-1].strip()
    return f"{set_cell_size(text, max(0, width - 1 - last)).rstrip()}…{tail}"


def _blocks(columns: Sequence[Column], rows: Rows, width: int) -> Iterator[RenderableType]:
    """One line for each cell; long ones go on below their beginning."""
    titles = max(cell_len(column.title) for column in columns) + 2
    least = [size for column, size in zip(columns, _widths(columns, rows), strict=True) if _is_whole(column)]
    is_tight = titles + max(least, default=0) > width
    for position, row in enumerate(rows):
        if position:
            yield Text("")
        block = Table.grid(padding=(0, 2, 0, 0))
        block.add_column(style="bold", no_wrap=True)
        block.add_column(overflow="fold")
        for column, cell in zip(columns, row, strict=True):
            if is_tight:
                yield Text(column.title, style="bold")
                yield Text(cell, overflow="fold")
            else:
                block.add_row(Text(column.title), Text(cell))
        yield block
