"""What commands share: how durations and times are read and shown, and options from settings."""

from typing import Annotated, ClassVar, Literal

import pytest
import typer
from pydantic import Field
from typer.testing import CliRunner

from lisa_common.cli.columns import Column
from lisa_common.cli.options import bounds_of, with_settings
from lisa_common.cli.output import print_table, shown_duration, shown_moment
from lisa_common.cli.parse import read_duration, read_moment
from lisa_common.cli.program import new_program
from lisa_common.cli.progress_bar import progress
from lisa_common.errors import InvalidInput
from lisa_common.escaping import shown
from lisa_common.settings import Settings
from lisa_common.start import start


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("1.5", 1.5), ("250ms", 0.25), ("30s", 30), ("15m", 900), ("1h30m", 5_400), ("7d", 604_800)],
)
def test_durations_are_read(text: str, seconds: float) -> None:
    """Seconds, or numbers with units."""
    assert read_duration("delay", text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "-1", "1 h", "1w", "h", "nan", "inf", "1e3", "1h30", "٣s", "1s1s", "30m1h"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    """With the field, the value and examples."""
    with pytest.raises(InvalidInput, match=r"^delay must be seconds, or numbers with units, .*; got "):
        read_duration("delay", text)


@pytest.mark.parametrize("text", ["", "now", "2030-01-01", "2030-01-01T00:00:00", "2030-13-01T00:00Z"])
def test_what_is_no_moment_is_refused(text: str) -> None:
    """A zone must be named."""
    with pytest.raises(InvalidInput, match="with its zone"):
        read_moment("at", text)


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0, "0s"), (1, "1ms"), (999, "999ms"), (1_500, "1.5s"), (60_000, "1m"), (90_061_000, "1d1h"), (-1_500, "-1.5s")],
)
def test_durations_are_shown(ms: int, text: str) -> None:
    """In their two largest units."""
    assert shown_duration(ms) == text


def test_moments_are_shown_in_utc() -> None:
    """To the millisecond; what is no date is shown as it is."""
    assert shown_moment(1_000_000_000_001) == "2001-09-09T01:46:40.001Z"
    assert (shown_moment(None), shown_moment(10**18)) == ("-", str(10**18))


def test_text_of_strangers_is_shown_on_one_line() -> None:
    """Escapes and line breaks are told, not obeyed."""
    assert shown("a\n\x1b[31m\u202eé\ud800") == r"a\n\x1b[31m\u202eé\ud800"


def test_tables_for_pipes_have_a_row_on_each_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Columns without lines, nothing cut off, nothing coloured."""
    print_table((Column("id"), Column("of what", number=True)), [["x" * 200, 1], ["[red]y\n", 22]])
    assert capsys.readouterr().out.splitlines() == [
        f"{'id':200}  of_what",
        f"{'x' * 200}        1",
        f"{'[red]y' + chr(92) + 'n':200}       22",
    ]


def test_progress_is_silent_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """A log gets no bars."""
    with progress("working", 3) as step:
        step(3)
    assert capsys.readouterr() == ("", "")


class _Settings(Settings):
    table: ClassVar[str] = "manager"

    level: Annotated[int, Field(gt=0, lt=9, description="how much of it")] = 3
    kind: Annotated[Literal["big", "small"], Field(description="which")] = "big"
    loud: Annotated[bool, Field(description="whether it shouts")] = False
    limit: Annotated[Annotated[int, Field(ge=5)] | None, Field(description="none: no limit")] = None


def _program() -> typer.Typer:
    program = new_program("lisa-manager", "Tests.")

    @program.command()
    @with_settings(_Settings)
    def run(word: str, *, settings: _Settings) -> None:
        """Runs."""
        print(word, settings.level, settings.kind, settings.loud, settings.limit)  # noqa: T201

    return program


def test_options_come_from_settings() -> None:
    """All kinds of fields; the command's own parameters stay."""
    words = ["run", "hello", "--level", "5", "--kind", "small", "--loud", "--limit", "7"]
    assert CliRunner().invoke(_program(), words).stdout == "hello 5 small True 7\n"
    assert (
        CliRunner().invoke(_program(), ["run", "hello"], env={"LISA_LEVEL": "2"}).stdout == "hello 2 big False None\n"
    )
    done = CliRunner().invoke(_program(), ["run", "hello", "--level", "9"])
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == "lisa-manager: setting level must be less than 9; got '9'\n"


def test_bounds_are_told() -> None:
    """In words, for every kind of bound."""
    told = {name: bounds_of(field) for name, field in _Settings.model_fields.items()}
    assert told["level"] == ", above 0 to below 9"
    assert told["kind"] == ", big or small"
    assert (told["loud"], told["limit"], told["prefix"]) == ("", ", from 5", "")


def test_a_program_without_its_packages_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line, exit code 2; any other missing module is a fault of ours, and shown as one."""

    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr("lisa_common.start.import_module", lambda _: missing("typer.core"))
    with pytest.raises(SystemExit) as ended:
        start("lisa-producer", "lisa_producer.commands")
    assert ended.value.code == 2
    assert capsys.readouterr().err == ("lisa-producer: commands need more packages: pip install 'lisa-producer[cli]'\n")
    monkeypatch.setattr("lisa_common.start.import_module", lambda _: missing("lisa_producer.oops"))
    with pytest.raises(ModuleNotFoundError, match="oops"):
        start("lisa-producer", "lisa_producer.commands")
