"""Commands, options and methods that the docs name exist."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from lisa_common import errors
from lisa_common.cli.program import LazyCommand
from lisa_consumer import Consumer, Delivery, ProcessDied, Worker
from lisa_consumer.program import program as consumer
from lisa_gateway.program import program as gateway
from lisa_manager import Admin
from lisa_manager.program import program as manager
from lisa_producer import PartialSend, Producer
from lisa_producer.program import program as producer

ROOT = Path(__file__).parents[2]
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text("utf-8")
    for path in (*sorted(ROOT.glob("docs/**/*.md")), *sorted(ROOT.glob("*/README.md")), ROOT / "README.md")
}
PROGRAMS = {
    "lisa-consumer": typer.main.get_command(consumer),
    "lisa-gateway": typer.main.get_command(gateway),
    "lisa-manager": typer.main.get_command(manager),
    "lisa-producer": typer.main.get_command(producer),
}
CLIENTS = {"admin": Admin, "consumer": Consumer, "delivery": Delivery, "producer": Producer, "worker": Worker("docs")}
_COMMAND = re.compile(r"(?:^|`|\$ |& )(lisa-(?:consumer|gateway|manager|producer) [^`\n&|>]+)", re.MULTILINE)
_METHOD = re.compile(rf"`({'|'.join(CLIENTS)})\.([a-z]\w*)\b")


def _unknown(line: str) -> Iterator[str]:
    name, *words = shlex.split(line, comments=True)
    command: Any = PROGRAMS[name]
    while words and getattr(command, "commands", None) and words[0] in command.commands:
        command = command.commands[words.pop(0)]
    if words and getattr(command, "commands", None) and words[0].islower() and not words[0].startswith("-"):
        yield words[0]
    command = command.load() if isinstance(command, LazyCommand) else command
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    for word in words:
        if word.startswith("--") and word.partition("=")[0].rstrip(",.") not in known | {"--help"}:
            yield word


@pytest.mark.parametrize("page", PAGES)
def test_commands_and_their_options_exist(page: str) -> None:
    """Wherever a page names one."""
    unknown = {line: list(_unknown(line)) for line in _COMMAND.findall(PAGES[page])}
    assert {line: words for line, words in unknown.items() if words} == {}


@pytest.mark.parametrize("page", PAGES)
def test_methods_exist(page: str) -> None:
    """Those of clients, deliveries and workers."""
    named = set(_METHOD.findall(PAGES[page]))
    assert {f"{owner}.{name}" for owner, name in named if not hasattr(CLIENTS[owner], name)} == set()


def test_the_page_on_errors_has_a_section_for_each() -> None:
    """And for nothing else."""
    public = {
        name
        for name in errors.__all__
        if isinstance(each := getattr(errors, name), type) and issubclass(each, Exception)
    }
    of_packages = {PartialSend.__name__, ProcessDied.__name__}
    assert public | of_packages == set(re.findall(r"^## (\w+)$", PAGES["docs/errors.md"], re.MULTILINE))
