"""A program of commands. An expected error ends it with one line and an exit code, without a traceback."""

import errno
import io
import logging
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import metadata
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from lisa_common.cli.streams import OUTPUT_ERRORS, abandon_output, provide_streams
from lisa_common.errors import LisaError
from lisa_common.escaping import shown
from lisa_common.logs import event, is_json

__all__ = [
    "EXIT_FINE",
    "EXIT_INTERRUPTED",
    "EXIT_NOT_DONE",
    "EXIT_WRONG",
    "Declined",
    "confirm",
    "new_program",
    "sub_commands",
]

EXIT_FINE = 0
EXIT_WRONG = 1
EXIT_NOT_DONE = 2
EXIT_INTERRUPTED = 130

# Click's base of usage errors, which some versions of typer vendor and others import.
_UsageError: type[Exception] = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


class Declined(LisaError):
    """A destructive command was not confirmed."""


class _Program(TyperGroup):
    """The outermost group of commands: the one place where errors become lines and exit codes."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        _escape_help(self)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,  # noqa: FBT001, FBT002 - as in typer
        windows_expand_args: bool = True,  # noqa: FBT001, FBT002
        **extra: Any,
    ) -> Any:
        """Runs a command line; in standalone mode, which is typer's default, it exits."""
        provide_streams()
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                # Characters that a terminal cannot show must not end the program.
                stream.reconfigure(errors="backslashreplace")
        code = self._run(
            args, prog_name=prog_name, complete_var=complete_var, windows_expand_args=windows_expand_args, **extra
        )
        if not standalone_mode:
            return code
        sys.exit(code)

    def _run(self, args: Sequence[str] | None, **extra: Any) -> int:
        try:
            code = self._invoke(args, **extra)
            sys.stdout.flush()
        except OSError as error:
            if error.errno not in OUTPUT_ERRORS:
                raise
            abandon_output()
            if error.errno != errno.EPIPE:
                self._print_error(f"cannot write to standard output: {error.strerror}")
            return EXIT_WRONG
        return code

    def _invoke(self, args: Sequence[str] | None, **extra: Any) -> int:
        try:
            code = super().main(args, standalone_mode=False, **extra)
        except LisaError as error:
            lines = str(error).splitlines()
        except typer.Abort:
            return EXIT_INTERRUPTED
        except _UsageError as error:
            if type(error).__name__ == "NoArgsIsHelpError":
                error.show()  # type: ignore[attr-defined]
                return EXIT_NOT_DONE
            lines = [" ".join(error.format_message().split())]  # type: ignore[attr-defined]
        else:
            return code if isinstance(code, int) else EXIT_FINE
        self._print_error(*lines)
        return EXIT_NOT_DONE

    def _print_error(self, *lines: str) -> None:
        if is_json():
            for line in lines:
                logging.getLogger(self.name).error("%s", line, extra=event("command_failed"))
            return
        with suppress(OSError):
            for line in lines:
                print(f"{self.name}: {shown(line)}", file=sys.stderr)  # noqa: T201


def _escape_help(command: Any) -> None:
    """Has help show brackets, as in `[[push.targets]]`, which typer would take for markup."""
    for each in (command, *command.params):
        for name in ("help", "short_help", "epilog"):
            text = getattr(each, name, None)
            if text and "[" in text:
                # Imported here, as it costs as much as a command; few texts need it.
                from rich.markup import escape  # noqa: PLC0415

                setattr(each, name, escape(text))
    for part in getattr(command, "commands", {}).values():
        _escape_help(part)


def new_program(name: str, purpose: str) -> typer.Typer:
    """A program without commands so far, with `--version`."""
    program = typer.Typer(
        name=name,
        help=purpose,
        cls=_Program,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        epilog="Exit codes: 0 done, 1 done and something is wrong, 2 not done.",
    )

    def show_version(given: bool) -> None:  # noqa: FBT001 - called by typer
        if given:
            print(f"{name} {metadata.version(name)}")  # noqa: T201
            raise typer.Exit

    @program.callback()
    def options(
        *,
        version: Annotated[
            bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version.")
        ] = False,
    ) -> None:
        pass

    return program


def sub_commands(program: typer.Typer, name: str, purpose: str) -> typer.Typer:
    """A group of commands below a program."""
    group = typer.Typer(name=name, help=purpose, no_args_is_help=True)
    program.add_typer(group)
    return group


def confirm(question: str, *, yes: bool) -> None:
    """Asks at a terminal; elsewhere requires `--yes`. Raises Declined."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise Declined(f"{question} Not done: pass --yes if there is no terminal")
    if not typer.confirm(shown(question), err=True):
        raise Declined("not done")
