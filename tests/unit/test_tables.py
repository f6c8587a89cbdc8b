"""Tables at terminals of any width: digits, times and headings stay whole, and nothing is lost in silence."""

import pytest
from hypothesis import given, strategies as st
from rich.cells import cell_len
from rich.console import Console

from lisa_common.cli.tables import Column, table_or_blocks

_GARBAGE = (
    *map(Column, ("id", "group", "reason")),
    Column("attempts", number=True),
    *(Column(title, whole=True) for title in ("died", "due")),
    Column("error"),
)
_DIED, _DUE = "2026-11-27T05:07:19.774Z", "2026-11-27T05:07:19.764Z"
_LETTERS = [[f"order-{n:040}", "billing", "rejected", "11", _DIED, _DUE, "ConnectionError: no " * 9] for n in range(3)]


def _shown(columns: tuple[Column, ...], rows: list[list[str]], width: int) -> list[str]:
    console = Console(width=width, force_terminal=False)
    with console.capture() as capture:
        console.print(table_or_blocks(columns, rows, width))
    return [line.rstrip() for line in capture.get().splitlines()]


def test_a_wide_terminal_shows_all() -> None:
    """Without a word about what does not fit."""
    lines = _shown(_GARBAGE, [["a", "g", "rejected", "1", _DIED, _DUE, "no"]], 160)
    assert lines[0].split() == ["id", "group", "reason", "attempts", "died", "due", "error"]
    assert lines[2].split() == ["a", "g", "rejected", "1", _DIED, _DUE, "no"]
    assert len(lines) == 3


def test_texts_are_cut_in_the_middle_and_columns_go() -> None:
    """At 80 columns: times stay whole, so one of them goes; the ends of the ids tell them apart."""
    lines = _shown(_GARBAGE, _LETTERS, 80)
    assert lines[0].split() == ["id", "group", "reason", "attempts", "died", "error"]
    assert [line.split()[0][-1] for line in lines[2:5]] == ["0", "1", "2"]
    assert all(_DIED in line and "…" in line for line in lines[2:5])
    assert lines[5:] == ["left out: due; cut: id, error (--json has all)"]


def test_columns_go_before_a_text_is_cut_below_its_least_width() -> None:
    """At 80 columns: why messages died stays readable, and their times go."""
    columns = (
        Column("count", number=True),
        *map(Column, ("reason", "group", "release")),
        Column("error", least=24),
        *(Column(title, whole=True) for title in ("first", "last")),
        Column("last id"),
    )
    error = "TimeoutError: the bank did not answer"
    lines = _shown(columns, [["12", "rejected", "billing", "1.4.2", error, _DUE, _DIED, "order-7118"]], 80)
    assert "TimeoutError: " in lines[2]
    assert lines[2].endswith("order-7118")
    assert lines[3] == "left out: first, last; cut: error (--json has all)"


def test_a_narrow_terminal_shows_blocks() -> None:
    """One line for each cell, and nothing is cut."""
    lines = _shown(_GARBAGE, _LETTERS[:2], 40)
    titles = [line.split()[0] for line in lines if line and not line.startswith(" ")]
    assert titles == [column.title for column in _GARBAGE] * 2
    assert "died      2026-11-27T05:07:19.774Z" in lines
    assert "".join(line[10:] for line in lines).count("ConnectionError: no") >= 10
    assert "" in lines, "between two rows"


def test_columns_that_tell_nothing_go_first() -> None:
    """Though others are further to the right."""
    columns = (Column("topic"), *(Column(f"number {n}", number=True) for n in range(6)))
    lines = _shown(columns, [["orders", "1,000", "0", "3,000", ".", "5,000", "6,000"]], 50)
    assert lines[0].split("  ")[0] == "topic"
    assert lines[2].split() == ["orders", "1,000", "3,000", "5,000", "6,000"]
    assert lines[3] == "left out: number 1, number 3 (--json has all)"


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 160])
@given(data=st.data())
def test_no_digit_breaks(width: int, data: st.DataObject) -> None:
    """Whatever is in a table and however wide the terminal is: a number is whole, or its column is named."""
    kinds = data.draw(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=9))
    columns = tuple(Column(f"title{at}", number=number, whole=whole) for at, (number, whole) in enumerate(kinds))
    texts = st.text("ab 漢é-", max_size=40).map(str.strip)
    numbers = st.integers(0, 10**9).map("{:,}".format)
    row = [data.draw(numbers if column.number or column.whole else texts) for column in columns]
    lines = _shown(columns, [row], width)
    assert max(map(cell_len, lines)) <= width
    words = {word for line in lines for word in line.replace(",", ", ").split()} | {
        w for line in lines for w in line.split()
    }
    for column, cell in zip(columns, row, strict=True):
        if column.number or column.whole:
            assert cell in words or f"{column.title}" in " ".join(lines).partition("left out:")[2]
