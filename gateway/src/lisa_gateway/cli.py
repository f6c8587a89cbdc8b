"""The `lisa-gateway` command."""

from lisa_common.start import start

__all__ = ["main"]


def main() -> None:
    """Runs a command line, and exits."""
    start("lisa-gateway", "lisa_gateway.program")
