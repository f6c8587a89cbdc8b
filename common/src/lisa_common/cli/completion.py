"""Completes values of command lines by what the server knows."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TypeVar

import typer

from lisa_common.errors import LisaError
from lisa_common.settings import Settings

__all__ = ["completed_by"]

S = TypeVar("S", bound=Settings)

_WITHIN_S = 2.0
"""How long a TAB waits for the server, in seconds."""


def completed_by(
    kind: type[S], names_of: Callable[[S, typer.Context], Iterable[str]]
) -> Callable[[typer.Context], list[str]]:
    """Returns what completes a value; by no name where the server does not answer in time."""

    def complete(ctx: typer.Context) -> list[str]:
        given = {name: value for name, value in ctx.params.items() if name in kind.model_fields}
        with suppress(LisaError):
            return list(names_of(kind.load(**given).model_copy(update={"timeout_s": _WITHIN_S}), ctx))
        return []

    return complete
