"""The help of every command of every program shows all of its text."""

from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from lisa_common.cli.program import LazyCommand, new_program
from lisa_consumer.program import program as consumer
from lisa_gateway.program import program as gateway
from lisa_manager.program import program as manager
from lisa_producer.program import program as producer

_WIDE = {"COLUMNS": "2000"}


def _commands(command: Any, *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command.load() if isinstance(command, LazyCommand) else command
    for name, part in getattr(command, "commands", {}).items():
        yield from _commands(part, *path, name)


_PROGRAMS = {"lisa-consumer": consumer, "lisa-gateway": gateway, "lisa-manager": manager, "lisa-producer": producer}
_ALL = {
    " ".join((name, *path)): (program, path, command)
    for name, program in _PROGRAMS.items()
    for path, command in _commands(typer.main.get_command(program))
}


def _squashed(text: str) -> str:
    return "".join(text.split())


def _missing(program: typer.Typer, path: tuple[str, ...], command: Any) -> list[str]:
    """Its texts that its help does not show as they were written."""
    shown = _squashed(CliRunner().invoke(program, [*path, "--help"], env=_WIDE).stdout)
    written = [command.help, *(getattr(p, "help", None) for p in command.params if not getattr(p, "hidden", False))]
    return [text for text in written if text and _squashed(text) not in shown]


@pytest.mark.parametrize("name", _ALL)
def test_help_shows_every_text(name: str) -> None:
    """Brackets included."""
    assert _missing(*_ALL[name]) == []


def test_operators_commands_take_json() -> None:
    """All that docs/commands.md says: those that take settings, but not the daemon."""
    operators = {name: command for name, (_, path, command) in _ALL.items() if "manager" in name and path}
    options = {name: {option for p in command.params for option in p.opts} for name, command in operators.items()}
    without = {name for name, given in options.items() if "--redis-url" in given and "--json" not in given}
    assert without == {"lisa-manager run"}


def test_brackets_are_shown() -> None:
    """As they are: nothing takes them for markup."""
    shown = CliRunner().invoke(gateway, ["push", "--help"], env=_WIDE).stdout
    assert shown.count("[[push.targets]]") == 2
    program = new_program("lisa-test", "Takes 'lisa-gateway[dashboard]'.")

    @program.command()
    def run() -> None:
        """Needs [bold]what[/bold] it needs."""

    assert "lisa-gateway[dashboard]" in CliRunner().invoke(program, ["--help"], env=_WIDE).stdout
    assert "[bold]what[/bold]" in CliRunner().invoke(program, ["run", "--help"], env=_WIDE).stdout


def test_settings_are_a_section_of_their_own() -> None:
    """What a command needs comes first."""
    shown = CliRunner().invoke(producer, ["send", "--help"], env=_WIDE).stdout
    places = [shown.index(text) for text in ("\nArguments:", "\nOptions:", "--ttl", "\nSettings:", "--redis-url")]
    assert places == sorted(places)
    assert "--json" not in shown.partition("\nSettings:")[2]
