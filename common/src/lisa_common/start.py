"""Starts a program; imports its commands only here, so that it can report missing packages.

It is outside `cli`, whose modules need the packages that may be missing.
"""

import sys
from importlib import import_module
from typing import NoReturn

__all__ = ["start"]

_BROUGHT_BY_CLI = ("click", "rich", "shellingham", "typer")


def start(distribution: str, module: str) -> NoReturn:
    """Runs `program`, the commands that a module defines, and exits with their code.

    Without the packages of the distribution's `cli` extra it prints one line with what to install, and exits with 2.
    """
    try:
        program = import_module(module).program
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _BROUGHT_BY_CLI:
            raise
        print(f"{distribution}: commands need more packages: pip install '{distribution}[cli]'", file=sys.stderr)  # noqa: T201
        sys.exit(2)
    program(prog_name=distribution)
    sys.exit(0)
