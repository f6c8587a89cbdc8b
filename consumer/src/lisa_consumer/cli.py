"""`lisa-consumer`: runs workers from the command line."""

from lisa_common.start import start

__all__ = ["main"]


def main() -> None:
    """Runs a command line, and exits."""
    start("lisa-consumer", "lisa_consumer.program")
