"""A program of commands. An expected error ends it with one line and an exit code, without a traceback."""

import ast
import errno
import io
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, TextIO, cast

import typer
from typer.core import TyperCommand, TyperGroup

from lisa_common import __version__
from lisa_common.errors import InvalidInput, LisaError
from lisa_common.escaping import shown
from lisa_common.logs import event, is_json
from lisa_common.start import EXIT_INTERRUPTED, quiet_imports

__all__ = [
    "EXIT_FINE",
    "EXIT_INTERRUPTED",
    "EXIT_NOT_DONE",
    "EXIT_WRONG",
    "Command",
    "Declined",
    "LazyCommand",
    "add_commands",
    "confirm",
    "interrupts_restored",
    "new_program",
    "sub_commands",
]

EXIT_FINE = 0
EXIT_WRONG = 1
EXIT_NOT_DONE = 2

# Click's base of usage errors, which some versions of typer vendor and others import.
_UsageError: type[Exception] = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


class Declined(LisaError):
    """A destructive command was not confirmed."""


class _Group(TyperGroup):
    """Commands, which a shell can complete without what their own options need."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses a command line."""
        if ctx.resilient_parsing:
            # Typer would import pydantic to read values, which do not matter here.
            for param in self.get_params(ctx):
                param.process_value = lambda ctx, value: value  # type: ignore[method-assign]  # noqa: ARG005
        return super().parse_args(ctx, args)


class _Program(_Group):
    """The outermost group of commands: the one place where errors become lines and exit codes."""

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
        _provide_streams()
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

    def invoke(self, ctx: Any) -> Any:
        """Runs a command. One that Ctrl-C ends says that it has not come to its end."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            self._print_error("interrupted; what was done by then stays")
            raise

    def _run(self, args: Sequence[str] | None, **extra: Any) -> int:
        try:
            code = self._invoke(args, **extra)
            sys.stdout.flush()
        except OSError as error:
            if error.errno not in _OUTPUT_ERRORS:
                raise
            _abandon_output()
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
            lines = [_usage_line(error)]
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


def _usage_line(error: Any) -> str:
    """The text of a usage error; where typer quotes pydantic, as Lisa's errors are written."""
    problems, param = getattr(error.__cause__, "errors", None), getattr(error, "param", None)
    if problems is None or param is None:
        return " ".join(error.format_message().split())
    # Imports pydantic, which help and completion do without.
    from lisa_common.validation import expected_by  # noqa: PLC0415

    problem = problems()[0]
    expected = expected_by(problem)
    if " is not one of " in expected:
        # Typer's text of a value that is none of an enum.
        expected = f"one of {expected.partition(' is not one of ')[2]}".replace("'", "").rstrip(".")
    return str(InvalidInput(param.name.rstrip("_"), problem["input"], expected))


class Command(TyperCommand):
    """A command whose help shows the options of each panel in a section of their own, after all others."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Writes arguments, options, and then the panels."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for param in self.get_params(ctx):
            if (record := param.get_help_record(ctx)) is None:
                continue
            kind = "Arguments" if param.param_type_name == "argument" else "Options"
            sections.setdefault(getattr(param, "rich_help_panel", None) or kind, []).append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


class LazyCommand(TyperCommand):
    """Stands for a command of a module that is imported when the command, or its help, is asked for."""

    def load(self) -> Command:
        """The command itself."""
        with quiet_imports():
            command = cast("Callable[[], Any]", self.callback)()
        alone = typer.Typer(add_completion=False, rich_markup_mode=None)
        alone.command(self.name, cls=Command)(command)
        return cast("Command", typer.main.get_command(alone))

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """The context of the command itself, which runs in place of this one."""
        return self.load().make_context(info_name, args, parent=parent, **extra)

    def get_short_help_str(self, limit: int = 0) -> str:  # noqa: ARG002 - as in typer
        """The whole summary: lists of commands wrap it."""
        return str(cast("Any", self.callback).summary())


def add_commands(group: typer.Typer, package: str, functions: str) -> None:
    """Adds functions of modules, which are imported when one is used: `x.list_` as `list`, `x.run_now` as `run-now`."""
    for place in functions.split():
        module, function = f"{package}.{place}".rsplit(".", 1)
        name = function.rstrip("_").replace("_", "-")
        group.command(name, cls=LazyCommand)(_finder(module, function))


def _finder(module: str, function: str) -> Callable[[], Any]:
    def find() -> Any:
        return getattr(import_module(module), function)

    find.summary = lambda: _summaries(module).get(function, "")  # type: ignore[attr-defined]
    return find


@cache
def _summaries(module: str) -> dict[str, str]:
    """The docstrings of functions up to their first empty lines, from the source: the module may import much."""
    loader: Any = getattr(find_spec(module), "loader", None)
    tree = ast.parse(loader.get_source(module) or "")
    docstrings = {each.name: ast.get_docstring(each) or "" for each in tree.body if isinstance(each, ast.FunctionDef)}
    return {name: " ".join(text.partition("\n\n")[0].split()) for name, text in docstrings.items()}


def new_program(name: str, purpose: str) -> typer.Typer:
    """A program without commands so far, with `--version`."""
    program = typer.Typer(
        name=name,
        help=purpose,
        cls=_Program,
        # Rich would take as long to import as everything else that `--help` needs.
        rich_markup_mode=None,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
        epilog="Exit codes: 0 done, 1 done and something is wrong, 2 not done.",
    )

    def show_version(given: bool) -> None:  # noqa: FBT001 - called by typer
        if given:
            print(f"{name} {__version__}")  # noqa: T201
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
    group = typer.Typer(name=name, help=purpose, cls=_Group, no_args_is_help=True, rich_markup_mode=None)
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


@contextmanager
def interrupts_restored() -> Iterator[Any]:
    """Gives the handler of SIGINT, and restores it after its block, in which a command may set another one."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield before
    finally:
        with suppress(ValueError):  # only the main thread handles signals
            signal.signal(signal.SIGINT, before)


# Standard streams that are missing or broken


_OUTPUT_ERRORS = (errno.EPIPE, errno.EBADF, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors that writing to standard output may raise."""


class _Closed(io.RawIOBase):
    """Replaces a missing stream; using it raises OSError, unless it is abandoned."""

    is_abandoned = False

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def readinto(self, _: object) -> int:
        raise OSError(errno.EBADF, "it is closed")

    def write(self, data: Any) -> int:
        if not self.is_abandoned:
            raise OSError(errno.EBADF, "it is closed")
        return memoryview(data).nbytes


_missing_output = _Closed()


def _provide_streams() -> None:
    """Opens substitutes for standard streams that are None, because the program was started without them."""
    missing = [name for name in ("stdin", "stdout", "stderr") if getattr(sys, name) is None]
    if "stdin" in missing:
        sys.stdin = io.TextIOWrapper(io.BufferedReader(_Closed()))
    if "stdout" in missing:
        sys.stdout = io.TextIOWrapper(io.BufferedWriter(_missing_output))
    if "stderr" in missing:
        # Without stderr nothing is printed; Python would use standard output instead.
        sys.stderr = _nowhere()


def _abandon_output() -> None:
    """Discards buffered output, so that Python does not write it again at exit."""
    nowhere = _nowhere()
    try:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
    except OSError:
        # From Python 3.13 on, a stream that cannot be flushed at its end says so on standard error.
        _missing_output.is_abandoned = True
        sys.stdout = nowhere


def _nowhere() -> TextIO:
    return Path(os.devnull).open("w", encoding="utf-8")
