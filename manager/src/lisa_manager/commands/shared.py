"""What the operator's commands share."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Annotated

import typer

from lisa_common.cli import progress, say, shown, with_settings
from lisa_common.errors import LisaError
from lisa_manager import Admin, ManagerSettings

__all__ = ["TopicName", "admin_command", "opened", "progress_of", "warn_of_missing_manager"]

admin_command = with_settings(ManagerSettings, shared_only=True)
"""Makes a function an operator's command, with options for the server and without those of the daemon."""

TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.", show_default=False)]


def opened(settings: ManagerSettings, *, patience_s: float = 0.0) -> Admin:
    """A client of these settings. Without patience, a command reports at once that the server is away."""
    return Admin(settings=settings, patience_s=patience_s)


def warn_of_missing_manager(admin: Admin) -> bool:
    """Says on stderr if no manager runs. Returns whether one was missing."""
    absence = ""
    # Of a Cluster, only the node of this key may be away.
    with suppress(LisaError):
        absence = admin.missing_manager()
    if absence:
        say(shown(absence), error=True)
    return bool(absence)


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
