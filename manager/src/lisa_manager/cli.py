"""The `lisa-manager` command: the daemon, and everything that operators type."""

from lisa_common.cli import new_program
from lisa_manager.commands.daemon import doctor, run
from lisa_manager.commands.status import status

__all__ = ["main", "program"]

program = new_program("lisa-manager", "Runs and operates Lisa, a delay queue on Redis Streams.")
program.command()(run)
program.command()(status)
program.command()(doctor)


def main() -> None:
    """Runs a command line, and exits."""
    program(prog_name="lisa-manager")
