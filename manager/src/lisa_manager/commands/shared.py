"""What the operator's commands share."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Annotated

import typer

from lisa_common.cli import progress, say, with_settings
from lisa_common.escaping import shown
from lisa_manager import Admin, ManagerSettings

__all__ = ["TopicName", "admin_command", "opened", "print_trace", "progress_of"]

admin_command = with_settings(ManagerSettings, shared_only=True)
"""Makes a function an operator's command, with options for the server and without those of the daemon."""

TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.", show_default=False)]


def opened(settings: ManagerSettings, *, patience_s: float = 0.0) -> Admin:
    """A client of these settings. Without patience, a command reports at once that the server is away."""
    return Admin(settings=settings, patience_s=patience_s)


def print_trace(name: str, trace: Sequence[str]) -> None:
    """Prints the stored frames of a traceback, if there are any."""
    if trace:
        say(f"\ntraceback of {shown(name)}:")
    for frame in trace:
        say(f"  {shown(frame)}")


@contextmanager
def progress_of(what: str) -> Iterator[Callable[[int, int], None]]:
    """Shows a progress bar from the first call of its function, which takes the amount done and the total."""
    with ExitStack() as stack:
        steps: list[Callable[[int], None]] = []
        last = 0

        def show(done: int, total: int) -> None:
            nonlocal last
            if not steps:
                steps.append(stack.enter_context(progress(what, total)))
            steps[0](done - last)
            last = done

        yield show
