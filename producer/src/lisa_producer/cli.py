"""`lisa-producer`: sends from the command line."""

from lisa_common.cli.start import start

__all__ = ["main"]


def main() -> None:
    """Runs a command line, and exits."""
    start("lisa-producer", "lisa_producer.commands")
