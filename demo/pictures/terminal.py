"""What a command prints at a real terminal of some width."""

import os
import pty
import re
import subprocess
import termios
from collections.abc import Mapping, Sequence

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import DEFAULT_TERMINAL_THEME
from rich.text import Text

from demo.processes import DemoFailed

__all__ = ["run_at_terminal", "svg_of"]

_FONT_OF_THE_WEB = re.compile(r"@font-face \{\{.*?\}\}\s*", re.DOTALL)


def run_at_terminal(command: Sequence[str], width: int, environment: Mapping[str, str]) -> str:
    """Runs a command on a terminal of its own, and returns what it printed, with its colors.

    Raises DemoFailed when the command ends with another exit code than 0, or 1 for what it found.
    """
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(ours, (50, width))
    terms = {"TERM": "xterm-256color", "COLUMNS": "", "LINES": ""}
    process = subprocess.Popen(  # noqa: S603 - our own programs
        command, env={**os.environ, **environment, **terms}, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    printed = b"".join(iter(lambda: _read(ours), b""))
    os.close(ours)
    if (code := process.wait()) not in {0, 1}:
        raise DemoFailed(f"{' '.join(command)} ended with {code}: {printed.decode()}")
    return printed.decode().replace("\r\n", "\n")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65_536)
    except OSError:
        # Linux says so when the last program has closed its end.
        return b""


def svg_of(command: str, printed: str, width: int) -> str:
    """A terminal of a width as an SVG: the command, and below it what it printed, which folds as at a terminal."""
    console = Console(record=True, width=width, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115, PTH123
    text = Text.assemble(("$ ", "dim"), (command, "bold"), "\n", Text.from_ansi(printed))
    for line in text.split("\n"):
        for part in line.divide(range(width, line.cell_len, width)):
            console.print(part, no_wrap=True, crop=False, highlight=False)
    return console.export_svg(
        title=f"{width} columns", code_format=_FONT_OF_THE_WEB.sub("", CONSOLE_SVG_FORMAT), theme=DEFAULT_TERMINAL_THEME
    )
