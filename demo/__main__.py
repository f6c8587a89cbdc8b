"""Plays one day: `python -m demo`. Exit code 0 only if the ledger balances at the end."""

import argparse
import sys
from collections.abc import Sequence

from rich.console import Console

from demo.airport_day import AirportDay
from demo.running import Place, options_of, run


def main(arguments: Sequence[str] | None = None) -> int:
    """Plays the day, prints the ledger, and says by its exit code whether it balances."""
    options, day = options_of(argparse.ArgumentParser(prog="demo", description=__doc__), arguments)
    console = Console(highlight=False, soft_wrap=True)

    def play(place: Place) -> int:
        with AirportDay(place, day) as airport_day:
            return airport_day.perform(console)

    return run(console, play, shards=options.shards)


if __name__ == "__main__":
    sys.exit(main())
