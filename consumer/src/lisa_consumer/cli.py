"""`lisa-consumer`: runs workers."""

import sys

__all__ = ["main"]


def main() -> None:
    """Runs a command line, and exits."""
    try:
        from lisa_consumer.commands import program  # noqa: PLC0415 - what it needs may not be installed
    except ModuleNotFoundError as error:
        if error.name not in {"typer", "rich"}:
            raise
        print("lisa-consumer: its commands are an extra: pip install 'lisa-consumer[cli]'", file=sys.stderr)  # noqa: T201
        sys.exit(2)
    program()
