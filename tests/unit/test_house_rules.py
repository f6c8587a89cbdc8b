"""Rules of the house that a linter does not know, as that what is long needs a reason."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted(ROOT.glob("*/src/**/*.py"))
TESTS = sorted((ROOT / "tests").glob("**/*.py"))
SCRIPTS = sorted(ROOT.glob("lua/**/*.lua"))
FILE_LINES, FUNCTION_LINES = 500, 40

# What may be longer, and why: "path" or "path::function" → reason.
LONGER: dict[str, str] = {
    "consumer/src/lisa_consumer/commands.py::run": "one line for each option of the command",
    "manager/src/lisa_manager/admin/rights.py::rules": "a table: one line for each right of a role",
    "producer/src/lisa_producer/async_client.py::send": "one line for each option: declared, explained, passed on",
    "producer/src/lisa_producer/client.py::send": "one line for each option: declared, explained, passed on",
    "producer/src/lisa_producer/commands.py::load": "one line for each option of the command",
    "producer/src/lisa_producer/commands.py::send": "one line for each option of the command",
}


def _functions(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1


def _lengths() -> Iterator[tuple[str, int, int]]:
    for path in MODULES + SCRIPTS:
        name = path.relative_to(ROOT).as_posix()
        yield name, len(path.read_text("utf-8").splitlines()), FILE_LINES
        if path.suffix == ".py":
            yield from ((f"{name}::{f}", lines, FUNCTION_LINES) for f, lines in _functions(path))


def test_what_is_long_has_a_reason() -> None:
    """No file over 500 lines and no function over 40, except those listed with a reason."""
    long = {name: lines for name, lines, limit in _lengths() if lines > limit}
    assert {name: lines for name, lines in long.items() if name not in LONGER} == {}
    assert [name for name in LONGER if name not in long] == [], "no longer long: unlist them"
    assert all(reason.strip() for reason in LONGER.values())


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_public_names_are_listed(path: Path) -> None:
    """Every public module that defines something says in `__all__` what it offers."""
    docstring, *rest = ast.parse(path.read_text("utf-8")).body
    assert isinstance(docstring, ast.Expr)
    private = path.name.startswith("_") and path.name != "__init__.py"
    is_lazy = "lazy_names" in {alias.name for each in rest if isinstance(each, ast.ImportFrom) for alias in each.names}
    assert private or not rest or "__all__" in _assigned(rest) or is_lazy


def _assigned(statements: list[ast.stmt]) -> set[str]:
    targets: list[ast.expr] = []
    for statement in statements:
        if isinstance(statement, ast.Assign):
            targets += statement.targets
        elif isinstance(statement, ast.AnnAssign):
            targets.append(statement.target)
    return {target.id for target in targets if isinstance(target, ast.Name)}


_REPLACED = re.compile(r"monkeypatch\.setattr\(\s*[\"']lisa_[\w.]+\.(\w+)\.\w+[\"']")
"""What a test replaces, by its full name, in something that a module of Lisa has: the name of that something."""


def test_no_test_changes_the_standard_library_for_other_threads() -> None:
    """A test replaces a module's name for `time`, not `time.sleep`: threads of other tests may sleep meanwhile."""
    replaced = {path.name: _REPLACED.findall(path.read_text("utf-8")) for path in TESTS}
    assert {name: names for name, names in replaced.items() if sys.stdlib_module_names.intersection(names)} == {}
