"""`lisa-manager status --watch`: a screen with a clock, and with the time since which the server has not answered."""

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from shutil import get_terminal_size
from textwrap import wrap
from typing import NoReturn

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from lisa_common.cli.output import say, shown_duration
from lisa_common.cli.program import EXIT_INTERRUPTED
from lisa_common.errors import OF_THE_SERVER, AccessDenied, LisaError, Untrusted
from lisa_common.escaping import shown
from lisa_manager import Admin, TopicStatus, TopicTraffic
from lisa_manager.commands.shared import find_warnings
from lisa_manager.commands.status_tables import Listing, Rates, fit, listings, unhealthy_first

__all__ = ["Reader", "Reading", "render", "watch"]

_TICK_S = 1.0
"""How often the screen's clock moves on, in seconds."""

_REMEMBERED = 20
"""Readings in a sparkline."""

_HOPELESS = (AccessDenied, Untrusted)
"""Errors of the server that do not go away by waiting."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The server's answer at one moment."""

    at: datetime
    moment: float
    """The monotonic clock, in seconds."""
    statuses: Sequence[TopicStatus]
    traffic: Sequence[TopicTraffic]
    warnings: Sequence[str]
    """What is wrong besides the topics, one line each."""
    rates: Rates = field(default_factory=Rates)
    history: Sequence[Rates] = ()
    """The rates of the latest readings, this one last."""


def _rates(before: Reading | None, traffic: Sequence[TopicTraffic], moment: float) -> Rates:
    """The increase of counters since a reading. A counter that went back has restarted from 0."""
    if before is None or moment <= before.moment:
        return Rates()
    seconds = moment - before.moment
    earlier = {each.topic: each for each in before.traffic}

    def rate(now: int, then: int | None) -> float | None:
        return None if then is None or now < then else (now - then) / seconds

    both = [(each, earlier[each.topic]) for each in traffic if each.topic in earlier]
    return Rates(
        {now.topic: rate(now.added, then.added) for now, then in both},
        {(now.topic, name): rate(count, then.read.get(name)) for now, then in both for name, count in now.read.items()},
    )


class Reader:
    """Reads the status repeatedly. Remembers the last answer, and when answers stopped."""

    def __init__(self, admin: Admin, topic: str | None) -> None:
        self._admin = admin
        self._topic = topic
        self.reading: Reading | None = None
        self.error: LisaError | None = None
        self.silent_since = datetime.now(UTC)
        """When the server answered last, or when this began."""

    def read(self) -> None:
        """Reads once. Raises LisaError if another reading would fail as well, for example for an unknown topic."""
        try:
            statuses, traffic = self._admin.status(self._topic), self._admin.traffic(self._topic)
            warnings = find_warnings(self._admin, self._topic)
        except OF_THE_SERVER as error:
            if isinstance(error, _HOPELESS):
                raise
            self.error = error
            return
        at, moment = datetime.now(UTC), time.monotonic()
        ordered = unhealthy_first(statuses)
        rates = _rates(self.reading, traffic, moment)
        history = (*(self.reading.history if self.reading else ()), rates)[-_REMEMBERED:]
        self.reading = Reading(at, moment, ordered, traffic, warnings, rates, history)
        self.error, self.silent_since = None, at

    def complaint(self, now: datetime) -> str:
        """When the server stopped answering, and why; "" while it answers."""
        error = self.error
        if error is None:
            return ""
        silent_ms = (now - self.silent_since).total_seconds() * 1000
        return f"no answer from the server since {_clock(self.silent_since)} ({shown_duration(silent_ms)}): {error}"


def _clock(moment: datetime) -> str:
    return f"{moment:%H:%M:%S}Z"


def _read_for_ever(reader: Reader, seconds: float, failures: list[Exception], ending: threading.Event) -> None:
    while not ending.is_set():
        try:
            reader.read()
        except Exception as error:  # noqa: BLE001 - raised again by the thread that shows the screen
            failures.append(error)
            return
        ending.wait(seconds)


def render(reader: Reader, now: datetime, seconds: float, *, width: int, height: int) -> RenderableType:
    """The screen: its clock, what is wrong with the server, and as many rows as fit into so many lines and columns."""
    reading, complaint = reader.reading, reader.complaint(now)
    head = f"{now:%Y-%m-%d} {_clock(now)}  every {shown_duration(seconds * 1000)}"
    if reading is not None:
        unhealthy = sum(1 for status in reading.statuses if status.problems)
        head += f"  topics: {len(reading.statuses):,}, unhealthy: {unhealthy:,}"
    lines: list[RenderableType] = [Text(head, style="bold", no_wrap=True, overflow="ellipsis")]
    if complaint:
        lines.append(Text(shown(complaint), style="bold red", no_wrap=True, overflow="ellipsis"))
    elif reading is None:
        lines.append(Text("waiting for the server's first answer", style="yellow"))
    if reading is not None:
        if complaint:
            lines.append(Text(f"as of {_clock(reading.at)}:", style="yellow"))
        for warning in reading.warnings:
            lines += [Text(line, style="bold red") for line in wrap(shown(warning), width)]
        # The last line stays free: a screen that is full to its last column scrolls.
        room = height - len(lines) - 1
        lines += _rows(fit(listings(reading.statuses, reading.rates, reading.history), room), width)
    return Group(*lines)


def _rows(found: Sequence[Listing], width: int) -> Iterator[RenderableType]:
    for listing in found:
        yield Text("")
        yield listing.table(width)
        if listing.more:
            yield Text(f"and {listing.more:,} more")


def _show(console: Console, reader: Reader, seconds: float) -> NoReturn:
    """Shows a screen until interrupted. A thread reads, so that the clock goes on while the server does not answer."""
    failures: list[Exception] = []
    ending = threading.Event()
    arguments = (reader, seconds, failures, ending)
    threading.Thread(target=_read_for_ever, args=arguments, name="lisa-watch", daemon=True).start()
    try:
        with Live(console=console, auto_refresh=False, screen=True) as screen:
            while not failures:
                # As tables are: by rich's own measure, COLUMNS=0 leaves no room for anything.
                width, height = console.size = get_terminal_size()
                screen.update(render(reader, datetime.now(UTC), seconds, width=width, height=height), refresh=True)
                time.sleep(min(seconds, _TICK_S))
    finally:
        ending.set()
    raise failures[0]


def _print_again(
    reader: Reader, seconds: float, show: Callable[[Sequence[TopicStatus], Rates], None], *, json: bool
) -> NoReturn:
    """Prints one status after another, for a pipe. Problems of the server go to stderr."""
    while True:
        reader.read()
        now = datetime.now(UTC)
        if complaint := reader.complaint(now):
            say(f"{now:%Y-%m-%d} {_clock(now)} {shown(complaint)}", error=True)
        elif reader.reading is not None:
            for warning in reader.reading.warnings:
                say(f"{now:%Y-%m-%d} {_clock(now)} {shown(warning)}", error=True)
            if not json:
                say(f"{now:%Y-%m-%d} {_clock(now)}")
            show(reader.reading.statuses, reader.reading.rates)
        sys.stdout.flush()
        time.sleep(seconds)


def watch(
    admin: Admin,
    topic: str | None,
    seconds: float,
    *,
    show: Callable[[Sequence[TopicStatus], Rates], None],
    json: bool,
) -> NoReturn:
    """Shows the status until interrupted; without a terminal, or as JSON, by `show`, one after another."""
    console = Console()
    reader = Reader(admin, topic)
    try:
        if not json and console.is_terminal:
            _show(console, reader, seconds)
        _print_again(reader, seconds, show, json=json)
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
