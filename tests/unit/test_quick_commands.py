"""Help and completion import little, and an interrupt of an import is quiet. What is imported counts, not seconds."""

import ast
import importlib
import inspect
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

import lisa_common
from lisa_common.cli.program import LazyCommand

PROGRAMS = ("lisa_producer", "lisa_consumer", "lisa_manager", "lisa_gateway")
LAZY = ("lisa_common", *PROGRAMS)
HEAVY = {"redis", "opentelemetry", "pydantic", "pydantic_settings", "rich", "starlette", "asyncio", "email", "tomllib"}
"""With `email`, which the metadata of distributions import."""

_IMPORTED = """
import sys
from {package}.cli import main
try:
    main()
except SystemExit:
    pass
print(*{{name.partition(".")[0] for name in sys.modules}}, file=sys.stderr)
"""

_INTERRUPTED = """
import signal, sys
class Finder:
    def find_spec(self, name, *_):
        if name == {module!r}:
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Finder())
from {package}.cli import main
main()
"""


def _run(code: str, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, env=os.environ | env, timeout=100
    )


def _imported(done: subprocess.CompletedProcess[str]) -> set[str]:
    return HEAVY.intersection(done.stderr.splitlines()[-1].split())


@pytest.mark.parametrize("package", PROGRAMS)
def test_help_imports_little(package: str) -> None:
    """And lists all commands."""
    done = _run(_IMPORTED.format(package=package), "--help")
    assert "Commands:\n" in done.stdout
    assert _imported(done) == set()


@pytest.mark.parametrize("words", ["", "topic "])
def test_completion_of_commands_imports_little(words: str) -> None:
    """That of options needs the settings, but no client."""
    line = f"lisa-manager {words}"
    asked = {"_LISA_MANAGER_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    done = _run(_IMPORTED.format(package="lisa_manager"), **asked)
    assert "list" in done.stdout.split()
    assert _imported(done) == set()


@pytest.mark.parametrize("words", ["send", "load"])
def test_help_and_options_of_a_send_need_no_client(words: str) -> None:
    """Only the settings, whose fields are options."""
    line = f"lisa-producer {words} --"
    asked = {"_LISA_PRODUCER_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    code = _IMPORTED.format(package="lisa_producer")
    for done in (_run(code, words, "--help"), _run(code, **asked)):
        assert "--confirm" in done.stdout
        assert _imported(done).isdisjoint({"redis", "opentelemetry", "rich", "tomllib"})


@pytest.mark.parametrize("package", LAZY)
def test_a_package_imports_nothing_by_itself(package: str) -> None:
    """Its names are imported when they are used."""
    code = f"import sys, {package}; print(*{{name.partition('.')[0] for name in sys.modules}}, file=sys.stderr)"
    assert _imported(_run(code)) == set()


@pytest.mark.parametrize("package", LAZY)
def test_lazy_names_are_those_that_type_checkers_see(package: str) -> None:
    """Each from the same module, by one name everywhere, which is no submodule's."""
    module = importlib.import_module(package)
    path = Path(str(module.__file__))
    tree = ast.parse(path.read_text("utf-8"))
    ifs = [node for node in tree.body if isinstance(node, ast.If)]
    [block] = [node for node in ifs if isinstance(node.test, ast.Name)]
    homes = {a.name: i.module for i in block.body if isinstance(i, ast.ImportFrom) for a in i.names}
    assert {*homes} | {"__version__"} == {*module.__all__} | {"__version__"}
    for name, home in homes.items():
        assert getattr(module, name) is getattr(importlib.import_module(str(home)), name)
        assert not (path.parent / f"{name}.py").exists()
    assert dir(module) == module.__all__
    # A type checker that saw it would take any name for one of the package.
    assert not any(isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__getattr__" for node in tree.body)
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        module.nonsense  # noqa: B018


def _lazy_commands(group: Any) -> list[LazyCommand]:
    below = [_lazy_commands(each) for each in getattr(group, "commands", {}).values()]
    return [group] if isinstance(group, LazyCommand) else [command for commands in below for command in commands]


@pytest.mark.parametrize("package", PROGRAMS)
def test_summaries_are_those_of_the_commands(package: str) -> None:
    """A list of commands says what the help of each begins with."""
    commands = _lazy_commands(typer.main.get_command(importlib.import_module(f"{package}.program").program))
    assert commands
    for command in commands:
        first = inspect.cleandoc(str(command.load().help)).partition("\n\n")[0]
        assert " ".join(first.split()) == command.get_short_help_str(), command.name


@pytest.mark.parametrize("module", ["typer", "pydantic", "redis"])
def test_an_interrupt_while_a_program_starts_is_quiet(module: str) -> None:
    """Nothing has begun, so there is nothing to say."""
    done = _run(_INTERRUPTED.format(package="lisa_producer", module=module), "send", "orders", "x")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_the_version_is_at_hand() -> None:
    """Without the distributions' metadata."""
    assert lisa_common.__version__
