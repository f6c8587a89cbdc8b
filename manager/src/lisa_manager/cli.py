"""The `lisa-manager` command: the daemon, and the commands for operators."""

from lisa_common.start import start

__all__ = ["main"]


def main() -> None:
    """Runs a command line, and exits."""
    start("lisa-manager", "lisa_manager.program")
