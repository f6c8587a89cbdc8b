"""The option with which programs that run for long wait for a server at their start."""

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
        help="How long to wait at the start for a server that is away: 30s, 5m; 0 fails at once; default: for ever.",
        show_default=False,
    ),
]


def wait_s(text: str | None) -> float:
    """The value of the option in seconds; raises InvalidInput."""
    return math.inf if text is None else read_duration("wait", text)
