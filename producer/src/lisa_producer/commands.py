"""The commands of `lisa-producer`."""

import os
import re
import signal
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, TypeVar

import typer

from lisa_common.cli.completion import completed_by
from lisa_common.cli.options import JsonFlag, option, with_settings
from lisa_common.cli.output import print_json, say, shown_moment
from lisa_common.cli.parse import read_duration, read_headers, read_moment
from lisa_common.cli.program import EXIT_INTERRUPTED, EXIT_NOT_DONE, EXIT_WRONG, interrupts_restored
from lisa_common.cli.progress_bar import progress
from lisa_common.errors import InvalidInput, LisaError, NotConfirmed, Verbatim
from lisa_common.escaping import shown
from lisa_common.start import quiet_imports
from lisa_common.validation import check_name
from lisa_producer.json_lines import Line, read_lines
from lisa_producer.message import Confirm
from lisa_producer.results import SendResult
from lisa_producer.settings import ProducerSettings

if TYPE_CHECKING:
    from lisa_producer.load import Load

__all__ = ["load", "send"]

T = TypeVar("T")

_MOST_BYTES = 512 * 1024 * 1024
"""Read from standard input, which may be endless; no policy allows so large a body."""


def _topics(settings: ProducerSettings, _: typer.Context) -> list[str]:
    # The client is imported where it is used: help needs none.
    from lisa_common.client.connection import Connection  # noqa: PLC0415
    from lisa_common.protocol.registry import read_registry  # noqa: PLC0415

    with Connection.of(settings, name="lisa-producer") as connection:
        return sorted(connection.run(read_registry(settings.prefix)))


Body = Annotated[
    str | None,
    typer.Argument(
        metavar="[BODY]",
        help="Text, sent unchanged; - for standard input. Optional if standard input is piped and not empty.",
        show_default=False,
    ),
]

ConfirmOption = Annotated[
    str | None,
    option(
        "Wait for this many replicas, for the disk, or both, at most 1s or the time given: 1, fsync, 2,fsync,5s.",
        "WHAT",
    ),
]


@with_settings(ProducerSettings, defaults={"patience_s": 0.0}, unused=("metrics",))  # somebody waits at the terminal
def send(
    topic: Annotated[
        str,
        typer.Argument(
            metavar="TOPIC",
            help="Topic to send to.",
            show_default=False,
            autocompletion=completed_by(ProducerSettings, _topics),
        ),
    ],
    body: Body = None,
    *,
    delay: Annotated[str | None, option("Due after this time: seconds, or 250ms, 30s, 15m, 1h30m, 7d.", "TIME")] = None,
    at: Annotated[str | None, option("Due at this time: ISO 8601 with its zone.", "MOMENT")] = None,
    id: Annotated[str | None, option("Send only if no message has this id.", "ID")] = None,
    if_exists: Annotated[
        str | None, option("replace: replace a message of this id that still waits or is to be retried.", "WHAT")
    ] = None,
    ttl: Annotated[str | None, option("Deliver at most this long after the due time.", "TIME")] = None,
    max_retries: Annotated[int | None, option("Most retries after the first delivery.", "NUMBER")] = None,
    priority: Annotated[int | None, option("Highest first among messages due in the same ms.", "NUMBER")] = None,
    key: Annotated[str | None, option("What it is about; a topic may limit the messages of a key.", "KEY")] = None,
    confirm: ConfirmOption = None,
    header: Annotated[list[str] | None, option("A header; repeat the option for more.", "KEY=VALUE")] = None,
    json: JsonFlag = False,
    settings: ProducerSettings,
) -> None:
    """Sends one message, due now unless --delay or --at is given.

    Exits with 1 if it was sent, but not confirmed as --confirm asks.
    """
    with quiet_imports():
        from lisa_producer.client import Producer  # noqa: PLC0415

    # Checked before waiting for standard input.
    options: dict[str, Any] = {
        "delay": _read(read_duration, "delay", delay),
        "at": _read(read_moment, "at", at),
        "ttl": _read(read_duration, "ttl", ttl),
        "headers": read_headers(header or ()),
        "key": key,
        "if_exists": if_exists,
    }
    confirmation = _confirmation(confirm)
    content = _content(body)
    with Producer(settings=settings, confirm=confirmation) as producer:
        try:
            result = producer.send(topic, content, id=id, max_retries=max_retries, priority=priority, **options)
        except NotConfirmed as error:
            # It is written all the same.
            if json:
                print_json({"topic": topic, "id": error.ids[0], "outcome": "not confirmed", "due_ms": None})
            say(f"lisa-producer: {error}", error=True)
            raise typer.Exit(EXIT_WRONG) from None
    _print_result(topic, result, json=json)


_CONFIRMATION = re.compile(r"(?:(\d{1,3})|(fsync)|(\d{1,3}),(fsync))(?:,(\d.*))?")


def _confirmation(text: str | None) -> Confirm | None:
    """The confirmation that an option asks for; raises InvalidInput."""
    if text is None:
        return None
    match = _CONFIRMATION.fullmatch(text.strip())
    if not match:
        raise InvalidInput("confirm", text, "replicas, fsync, or both, and a time to wait, as in 1 or 2,fsync,5s")
    timeout = {"timeout": read_duration("confirm", match[5])} if match[5] else {}
    return Confirm(replicas=int(match[1] or match[3] or 0), fsync=bool(match[2] or match[4]), **timeout)


def _content(body: str | None) -> str | bytes:
    if body is not None and body != "-":
        return body
    # Without an argument at a terminal, nobody knows that the program waits.
    is_given = body is not None or not sys.stdin.isatty()
    content = _standard_input() if is_given else b""
    if body is None and not content:
        raise InvalidInput("body", Verbatim("nothing"), "an argument or piped to standard input ('' if empty)")
    return content


def _standard_input() -> bytes:
    try:
        content = sys.stdin.buffer.read(_MOST_BYTES)
    except OSError as error:
        raise _unreadable("body", "-", error) from None
    if len(content) >= _MOST_BYTES:
        raise InvalidInput("body", Verbatim("more"), f"less than {_MOST_BYTES} bytes")
    return content


def _unreadable(field: str, name: str, error: OSError) -> InvalidInput:
    kind = "readable standard input" if name == "-" else "a readable file"
    return InvalidInput(field, name, f"{kind} ({error.strerror or error})")


def _print_result(topic: str, result: SendResult, *, json: bool) -> None:
    if json:
        print_json({"topic": topic, "id": result.id, "outcome": result.outcome, "due_ms": result.due_ms})
    elif result.duplicate:
        say(f"duplicate {result.id}; nothing was sent")
    else:
        due = f", due {shown_moment(result.due_ms)}" if result.due_ms else ""
        say(f"{result.outcome} {result.id}{due}")


def _read(read: Callable[[str, str], T], name: str, text: str | None) -> T | None:
    return None if text is None else read(name, text)


@with_settings(ProducerSettings, unused=("metrics",))
def load(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="Lines of JSON; - for standard input.", show_default=False)
    ],
    *,
    topic: Annotated[str | None, option("Topic of lines without a topic.", "TOPIC")] = None,
    resume: Annotated[int, typer.Option(min=1, metavar="LINE", help="Begin with this line.", show_default=False)] = 1,
    stable_ids: Annotated[
        bool, typer.Option("--stable-ids", help="Give lines without an id one made of file, line number and content.")
    ] = False,
    confirm: ConfirmOption = None,
    json: JsonFlag = False,
    settings: ProducerSettings,
) -> None:
    """Sends a message for each line: {"topic", "body", "delay" or "at", "id", "ttl", "max_retries", …}.

    An invalid line is reported on stderr, and the others are sent. Ctrl-C stops once the batch under way is sent, and
    shows the line to --resume from; a second Ctrl-C stops at once. A load may also be repeated as a whole: lines with
    an id are not sent twice.
    """
    with quiet_imports():
        from lisa_producer.bulk_sender import BulkSender  # noqa: PLC0415
        from lisa_producer.client import Producer  # noqa: PLC0415
        from lisa_producer.load import Load  # noqa: PLC0415

    if topic is not None:
        check_name("topic", topic)
    confirmation = _confirmation(confirm)
    source = _source(file) if stable_ids else None
    stopped: LisaError | KeyboardInterrupt | None = None
    with interrupts_restored():
        with (
            _open(file) as (lines, size),
            progress("loading", size, in_bytes=True) as step,
            Producer(settings=settings, confirm=confirmation) as p,
        ):
            loading = Load(BulkSender(p, _report_line, step), topic, first=resume, source=source)
            signal.signal(signal.SIGINT, loading.interrupt)
            try:
                loading.run(_lines(file, lines))
            except (LisaError, KeyboardInterrupt) as error:
                stopped = error
        _print_report(loading, stopped, json=json)


def _source(name: str) -> bytes:
    """The name of a file for ids of its lines."""
    path = Path(name)
    # A pipe has another name each time.
    if name == "-" or (path.exists() and not path.is_file()):
        raise InvalidInput("file", name, "a regular file with --stable-ids")
    return os.fsencode(path.resolve())


def _lines(name: str, file: BinaryIO) -> Iterator[Line]:
    try:
        yield from read_lines(file)
    except OSError as error:
        raise _unreadable("file", name, error) from None


def _report_line(number: int, error: LisaError) -> None:
    say(f"line {number}: {shown(str(error))}", error=True)


def _print_report(loading: "Load", stopped: LisaError | KeyboardInterrupt | None, *, json: bool) -> None:
    report = loading.report
    is_interrupted = isinstance(stopped, KeyboardInterrupt)
    cause = "interrupted" if is_interrupted else str(stopped) if stopped else None
    if json:
        counts: dict[str, Any] = {"sent": report.sent, "duplicates": report.duplicates, "failed": report.failed}
        if report.replaced:
            counts["replaced"] = report.replaced
        if cause:
            counts |= {"resume": loading.next_line, "perhaps_sent_to": loading.last_stored}
        print_json(counts | {"stopped": cause})
    else:
        replaced = f", replaced {report.replaced}" if report.replaced else ""
        say(f"sent {report.sent}, duplicates {report.duplicates}, failed {report.failed}{replaced}")
    if cause:
        what = cause if is_interrupted else f"stopped before the end: {cause}"
        say(f"lisa-producer: {shown(what)}; {_rest(loading)}", error=True)
        raise typer.Exit(EXIT_INTERRUPTED if is_interrupted else EXIT_NOT_DONE)
    if loading.lines < loading.next_line - 1:
        raise InvalidInput(
            "resume", loading.next_line, f"at most {loading.lines + 1}, as there are {loading.lines} lines"
        )
    if report.failed:
        raise typer.Exit(EXIT_WRONG)


def _rest(loading: "Load") -> str:
    first, last = loading.next_line, loading.last_stored
    doubt = f"; of lines {first} to {last}, those without an id may be sent twice" if last else ""
    return f"--resume {first} loads the rest{doubt}"


@contextmanager
def _open(name: str) -> Iterator[tuple[BinaryIO, int | None]]:
    """Opens a file. Yields it with its size, if it has one."""
    try:
        stream = nullcontext(sys.stdin.buffer) if name == "-" else Path(name).open("rb")  # noqa: SIM115 - closed below
    except OSError as error:
        raise _unreadable("file", name, error) from None
    with stream as file:
        try:
            status = os.fstat(file.fileno())
        except OSError:
            status = None
        yield file, status.st_size if status and stat.S_ISREG(status.st_mode) else None
