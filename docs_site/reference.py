"""Pages of reference that are made of the code: commands from their help, HTTP from OpenAPI, Python from docstrings."""

import json
import os
from collections.abc import Iterator
from typing import Any

import typer
from typer.testing import CliRunner

from lisa_consumer.program import program as consumer
from lisa_gateway.program import program as gateway
from lisa_manager.program import program as manager
from lisa_producer.program import program as producer

__all__ = ["render_commands", "render_http", "render_python"]

PROGRAMS = {"lisa-producer": producer, "lisa-manager": manager, "lisa-consumer": consumer, "lisa-gateway": gateway}
MODULES = {
    "lisa_producer": "Send, cancel, reschedule and find messages.",
    "lisa_consumer": "Read and handle messages.",
    "lisa_manager": "Operate topics, groups, messages and schedules.",
    "lisa_common.errors": "All errors. [Errors](../errors.md) says what causes each, and what to do.",
    "lisa_testing": "Test programs that use Lisa.",
}


def render_python() -> str:
    """Returns the page of the Python API."""
    parts = [
        "# Python API\n\nWhat each package exports. The asyncio clients have the same methods as the blocking ones."
    ]
    for name, text in MODULES.items():
        parts.append(
            f"## {name}\n\n{text}\n\n::: {name}\n    options:\n      heading_level: 3\n      show_root_heading: false"
        )
    return "\n\n".join(parts) + "\n"


def render_commands() -> str:
    """Returns the page of all commands: what each prints for `--help`."""
    parts = [
        "# Help of commands\n\nWhat each command prints for `--help`. [Settings](../settings.md) have options, too."
    ]
    for name, program in PROGRAMS.items():
        for path in _paths(typer.main.get_command(program)):
            help_ = CliRunner().invoke(
                program, [*path, "--help"], env={**os.environ, "COLUMNS": "110", "NO_COLOR": "1"}
            )
            # Options of settings are the same for all commands but `run`.
            shown = help_.output if "run" in path else help_.output.partition("\nSettings:")[0]
            text = "\n".join(line.rstrip() for line in shown.replace("Usage: root", f"Usage: {name}").splitlines())
            parts.append(f"{'###' if path else '##'} {' '.join((name, *path))}\n\n```text\n{text.strip()}\n```")
    return "\n\n".join(parts) + "\n"


def _paths(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name, below in getattr(command, "commands", {}).items():
        if not below.hidden:
            yield from _paths(below, (*path, name))


def render_http() -> str:
    """Returns the page of `/v1`: its operations with parameters and answers."""
    document = json.loads(CliRunner().invoke(gateway, ["openapi"]).output)
    parts = [
        (
            "# HTTP API\n\nThe operations of `/v1`, from the OpenAPI document that `lisa-gateway openapi` prints. "
            "[HTTP](../http.md) explains them by examples."
        )
    ]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            if method != "parameters":
                parameters = [*operations.get("parameters", ()), *operation.get("parameters", ())]
                parts.append(_operation(document, f"{method.upper()} {path}", operation, parameters))
    return "\n\n".join(parts) + "\n"


def _operation(document: Any, title: str, operation: Any, parameters: list[Any]) -> str:
    lines = [f"## {title}", "", operation.get("summary", ""), "", operation.get("description", ""), ""]
    if parameters:
        lines += ["| parameter | in | |", "| --- | --- | --- |"]
        for each in (_resolved(document, parameter) for parameter in parameters):
            needed = ", required" if each.get("required") else ""
            lines.append(f"| `{each['name']}` | {each['in']}{needed} | {_cell(each.get('description', ''))} |")
        lines.append("")
    lines += ["| answer | |", "| --- | --- |"]
    for status, answer in operation["responses"].items():
        lines.append(f"| {status} | {_cell(_resolved(document, answer).get('description', ''))} |")
    return "\n".join(lines)


def _resolved(document: Any, node: Any) -> Any:
    for name in node.get("$ref", "").removeprefix("#/").split("/") if "$ref" in node else ():
        document = document[name]
    return document if "$ref" in node else node


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
