"""Starts a program; imports its commands only here, so that it can report missing packages.

It is outside `cli`, whose modules need the packages that may be missing.
"""

import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import NoReturn

__all__ = ["EXIT_INTERRUPTED", "quiet_imports", "start"]

EXIT_INTERRUPTED = 130

_BROUGHT_BY_CLI = ("click", "rich", "shellingham", "typer")


def start(distribution: str, module: str) -> NoReturn:
    """Runs `program`, the commands that a module defines, and exits with their code. Call it in the main thread.

    Without the packages of the distribution's `cli` extra it prints one line with what to install, and exits with 2.
    """
    try:
        with quiet_imports():
            program = import_module(module).program
        program(prog_name=distribution)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _BROUGHT_BY_CLI:
            raise
        print(f"{distribution}: commands need more packages: pip install '{distribution}[cli]'", file=sys.stderr)  # noqa: T201
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    finally:
        # The command has ended. What is left is to wait for threads, which Python would interrupt with a traceback.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(0)


@contextmanager
def quiet_imports() -> Iterator[None]:
    """Has SIGINT end the process at once and without a traceback, while the block imports: nothing has begun yet.

    Nearly all that imports make stays. To look for garbage in it would take a tenth of their time.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, lambda *_: os._exit(EXIT_INTERRUPTED))
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        signal.signal(signal.SIGINT, before)
