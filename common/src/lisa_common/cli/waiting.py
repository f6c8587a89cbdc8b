"""The option of long-running programs to wait for a server at start."""

import math
from typing import Annotated

import typer

from lisa_common.cli.parse import read_duration

__all__ = ["WaitOption", "wait_s"]

WaitOption = Annotated[
    str | None,
    typer.Option(
        "--wait",
        metavar="TIME",
        help="How long to wait for the server at start, as in 30s or 5m; 0 fails at once; default: for ever.",
        show_default=False,
    ),
]


def wait_s(text: str | None) -> float:
    """The value of the option in seconds; raises InvalidInput."""
    return math.inf if text is None else read_duration("wait", text)
