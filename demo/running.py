"""What both demos need around their day: options, a server, a directory, and an end that leaves nothing behind."""

import argparse
import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from types import FrameType

from rich.console import Console

from demo.flights import Flight, flights_of
from demo.server import Server
from lisa_common.client.embedded.server import embedded_server
from lisa_common.errors import LisaError
from lisa_common.model.policy import MAX_SHARDS
from lisa_producer import ProducerSettings

__all__ = ["Day", "Place", "options_of", "run"]

_STORM = date(2013, 3, 8)
"""A snowstorm: of 979 flights, 180 were cancelled, and 552 were late."""

_INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Day:
    """The day to play, and the seconds that it takes."""

    date: date
    flights: Sequence[Flight]
    seconds: float

    def __str__(self) -> str:
        return f"{self.date:%d %B %Y}"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a demo is played: a server, a prefix of its own on it, and a directory of its own."""

    settings: ProducerSettings
    shards: int
    """The number of shards of each topic."""
    directory: Path


def options_of(
    parser: argparse.ArgumentParser, arguments: Sequence[str] | None = None
) -> tuple[argparse.Namespace, Day]:
    """The options and the day. An option that is not allowed ends the program, with a line that names its bounds."""
    parser.add_argument("--day", type=date.fromisoformat, default=_STORM, help="a day in 2013 (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long the day takes (default: %(default)g)")
    parser.add_argument("--shards", type=int, default=1, help="shards of each topic (default: %(default)s)")
    options = parser.parse_args(arguments)
    if not 5 <= options.seconds <= 45:  # noqa: PLR2004 - said in the message
        parser.error("--seconds: from 5 to 45, so that the demo ends within two minutes")
    if not 1 <= options.shards <= MAX_SHARDS:
        parser.error(f"--shards: from 1 to {MAX_SHARDS}")
    try:
        flights = flights_of(options.day)
    except (ValueError, ModuleNotFoundError) as error:
        parser.error(str(error))
    return options, Day(options.day, flights, options.seconds)


def run(console: Console, play: Callable[[Place], int], *, shards: int) -> int:
    """Plays, and returns the exit code. After 1 the directory stays, for its logs and journals."""
    signal.signal(signal.SIGTERM, _interrupt)
    directory = Path(tempfile.mkdtemp(prefix="lisa-demo-"))
    code = 1
    try:
        with _place(directory, shards) as place:
            code = play(place)
    except KeyboardInterrupt:
        console.print("interrupted; everything that was started has been stopped")
        code = _INTERRUPTED
    except LisaError as error:
        console.print(f"the demo has failed: {error}", markup=False)
    finally:
        if code == 1:
            console.print(f"logs and journals are kept in {directory}")
        else:
            shutil.rmtree(directory)
    return code


@contextmanager
def _place(directory: Path, shards: int) -> Iterator[Place]:
    """An embedded server, or a new prefix on the named server, service behind Sentinel, or Cluster."""
    if named := os.environ.get("LISA_REDIS_URL"):
        settings = ProducerSettings.load(redis_url=named, prefix=f"demo-{secrets.token_hex(4)}")
        try:
            yield Place(settings, shards, directory)
        finally:
            with Server(settings) as server:
                server.remove_all()
    else:
        with embedded_server(directory / "valkey") as url:
            yield Place(ProducerSettings.load(redis_url=url, prefix="lisa"), shards, directory)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
