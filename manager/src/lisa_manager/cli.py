"""The `lisa-manager` command: the daemon, and the commands for operators."""

from typing import TYPE_CHECKING

from lisa_common.lazy import lazy_names
from lisa_common.start import start

if TYPE_CHECKING:
    from lisa_manager.program import program

__all__ = ["main", "program"]

__getattr__ = lazy_names(__name__, {"lisa_manager.program": "program"})


def main() -> None:
    """Runs a command line, and exits."""
    start("lisa-manager", "lisa_manager.program")
