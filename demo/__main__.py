"""Plays one day: `python -m demo`. Exit code 0 only if the ledger balances at the end."""

import argparse
import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from types import FrameType

import redis
from rich.console import Console

from demo.flights import Flight, flights_of
from demo.ledger import lines
from demo.processes import DemoFailed
from demo.stage import Setting, Stage
from demo.view import view_for
from lisa_common.embedded import embedded_server
from lisa_common.errors import LisaError

_STORM = date(2013, 3, 8)
"""A snowstorm: of 979 flights, 180 were cancelled, and 552 were late."""

_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Plays the day, prints the ledger, and says by its exit code whether it balances."""
    parser = argparse.ArgumentParser(prog="demo", description=__doc__)
    parser.add_argument("--day", type=date.fromisoformat, default=_STORM, help="a day in 2013 (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long the day takes (default: %(default)g)")
    options = parser.parse_args(arguments)
    if not 5 <= options.seconds <= 45:  # noqa: PLR2004 - said in the message
        parser.error("--seconds: from 5 to 45, so that the demo ends within two minutes")
    try:
        flights = flights_of(options.day)
    except (ValueError, ModuleNotFoundError) as error:
        parser.error(str(error))
    signal.signal(signal.SIGTERM, _interrupt)
    console = Console(highlight=False, soft_wrap=True)
    directory = Path(tempfile.mkdtemp(prefix="lisa-demo-"))
    code = 1
    try:
        with _setting(directory, options.day, flights, options.seconds) as setting:
            code = _play(console, setting)
    except KeyboardInterrupt:
        console.print("interrupted; everything that was started has been stopped")
        code = _INTERRUPTED
    except (LisaError, redis.RedisError) as error:
        console.print(f"the demo has failed: {error}", markup=False)
    finally:
        if code == 1:
            console.print(f"logs and journals are kept in {directory}")
        else:
            shutil.rmtree(directory)
    return code


def _play(console: Console, setting: Setting) -> int:
    began = time.monotonic()
    title = f"{setting.day:%d %B %Y}"
    with Stage(setting) as stage:
        try:
            console.print(f"{stage.start()}\n")
            with view_for(console, f"New York, {title}") as view:
                stage.play(view)
            ledger = stage.close()
        except DemoFailed as failure:
            console.print(f"\nthe demo has failed: {failure}\n{stage.tails()}", markup=False)
            return 1
        console.print(f"\nThe ledger of {title}, after {time.monotonic() - began:.0f} s")
        for line in lines(ledger):
            console.print(line, markup=False)
        if not ledger.balanced:
            console.print(stage.tails(), markup=False)
    return 0 if ledger.balanced else 1


@contextmanager
def _setting(directory: Path, day: date, flights: Sequence[Flight], seconds: float) -> Iterator[Setting]:
    """A server of our own, or a prefix of our own on the one that is named."""
    if named := os.environ.get("LISA_REDIS_URL"):
        prefix = f"demo-{secrets.token_hex(4)}"
        yield Setting(named, prefix, directory, day, flights, seconds, borrowed=True)
    else:
        with embedded_server(directory / "valkey") as url:
            yield Setting(url, "lisa", directory, day, flights, seconds)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
