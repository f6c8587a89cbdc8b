"""The help of every command of every program shows all of its text."""

from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from lisa_common.cli import new_program
from lisa_consumer.commands import program as consumer
from lisa_gateway.commands import program as gateway
from lisa_manager.cli import program as manager
from lisa_producer.commands import program as producer

_WIDE = {"COLUMNS": "2000"}


def _commands(command: Any, *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, part in getattr(command, "commands", {}).items():
        yield from _commands(part, *path, name)


_PROGRAMS = {"lisa-consumer": consumer, "lisa-gateway": gateway, "lisa-manager": manager, "lisa-producer": producer}
_ALL = {
    " ".join((name, *path)): (program, path, command)
    for name, program in _PROGRAMS.items()
    for path, command in _commands(typer.main.get_command(program))
}


def _squashed(text: str) -> str:
    return "".join(text.replace("│", "").split())


def _missing(program: typer.Typer, path: tuple[str, ...], command: Any) -> list[str]:
    """Its texts that its help does not show as they were written."""
    shown = _squashed(CliRunner().invoke(program, [*path, "--help"], env=_WIDE).stdout)
    written = [command.help, *(getattr(p, "help", None) for p in command.params if not getattr(p, "hidden", False))]
    # Texts are escaped for the markup of rich by a backslash.
    return [text for text in written if text and _squashed(text.replace("\\[", "[")) not in shown]


@pytest.mark.parametrize("name", _ALL)
def test_help_shows_every_text(name: str) -> None:
    """Brackets, which rich would take for markup, included."""
    assert _missing(*_ALL[name]) == []


def test_brackets_are_shown() -> None:
    """The help of a pusher names the table of its targets; a program's own texts may have any brackets."""
    shown = CliRunner().invoke(gateway, ["push", "--help"], env=_WIDE).stdout
    assert shown.count("[[push.targets]]") == 2
    program = new_program("lisa-test", "Takes 'lisa-gateway[dashboard]'.")

    @program.command()
    def run() -> None:
        """Needs [bold]what[/bold] it needs."""

    assert "lisa-gateway[dashboard]" in CliRunner().invoke(program, ["--help"], env=_WIDE).stdout
    assert "[bold]what[/bold]" in CliRunner().invoke(program, ["run", "--help"], env=_WIDE).stdout
