"""The program `lisa-producer`."""

from lisa_common.start import start

__all__ = ["main"]


def main() -> None:
    """Runs the command line, and exits."""
    start("lisa-producer", "lisa_producer.program")
