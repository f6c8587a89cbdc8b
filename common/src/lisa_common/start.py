"""Starts a program; imports its commands only here, so that it can report missing packages.

It is outside `cli`, whose modules need the packages that may be missing.
"""

import signal
import sys
from importlib import import_module
from typing import NoReturn

__all__ = ["start"]

_BROUGHT_BY_CLI = ("click", "rich", "shellingham", "typer")


def start(distribution: str, module: str) -> NoReturn:
    """Runs `program`, the commands that a module defines, and exits with their code. Call it in the main thread.

    Without the packages of the distribution's `cli` extra it prints one line with what to install, and exits with 2.
    """
    try:
        program = import_module(module).program
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _BROUGHT_BY_CLI:
            raise
        print(f"{distribution}: commands need more packages: pip install '{distribution}[cli]'", file=sys.stderr)  # noqa: T201
        sys.exit(2)
    try:
        program(prog_name=distribution)
    finally:
        # The command has ended. What is left is to wait for threads, which Python would interrupt with a traceback.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(0)
