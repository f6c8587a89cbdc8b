"""Plays one day: `python -m demo`. Exit code 0 only if the ledger balances at the end."""

import argparse
import sys
import time
from collections.abc import Sequence

from rich.console import Console

from demo.ledger import lines
from demo.processes import DemoFailed
from demo.running import Day, Place, options_of, run
from demo.stage import Stage
from demo.view import view_for


def main(arguments: Sequence[str] | None = None) -> int:
    """Plays the day, prints the ledger, and says by its exit code whether it balances."""
    _, day = options_of(argparse.ArgumentParser(prog="demo", description=__doc__), arguments)
    console = Console(highlight=False, soft_wrap=True)
    return run(console, lambda place: _play(console, place, day))


def _play(console: Console, place: Place, day: Day) -> int:
    began = time.monotonic()
    with Stage(place, day) as stage:
        try:
            console.print(f"{stage.start()}\n")
            with view_for(console, f"New York, {day}") as view:
                stage.play(view)
            ledger = stage.close()
        except DemoFailed as failure:
            console.print(f"\nthe demo has failed: {failure}\n{stage.tails()}", markup=False)
            return 1
        console.print(f"\nThe ledger of {day}, after {time.monotonic() - began:.0f} s")
        for line in lines(ledger):
            console.print(line, markup=False)
        if not ledger.balanced:
            console.print(stage.tails(), markup=False)
    return 0 if ledger.balanced else 1


if __name__ == "__main__":
    sys.exit(main())
