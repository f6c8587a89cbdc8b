"""Plays one day as a pipeline of Spark jobs: `python -m demo.spark`. Exit code 0 only if the ledger balances."""

import argparse
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console

from demo.running import Place, options_of, run
from demo.spark.java import JAVA, java_version
from demo.spark.pipeline import Pipeline

_MISSING = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Plays the day, prints tables and ledger, and says by its exit code whether it balances; 2 without Java."""
    parser = argparse.ArgumentParser(prog="demo.spark", description=__doc__)
    parser.add_argument(
        "--chart", type=Path, default=Path("demo-spark.png"), help="where the chart goes (default: %(default)s)"
    )
    options, day = options_of(parser, arguments)
    if missing := _missing():
        print(f"demo.spark: {missing}; `make demo` does without", file=sys.stderr)
        return _MISSING
    console = Console(highlight=False, soft_wrap=True)

    def play(place: Place) -> int:
        with Pipeline(place, day, options.chart) as pipeline:
            return pipeline.perform(console)

    return run(console, play, shards=options.shards)


def _missing() -> str:
    for package in ("pyspark", "matplotlib"):
        if find_spec(package) is None:
            return f"the package {package} is not installed"
    version = java_version()
    if version < JAVA:
        return f"Spark needs Java {JAVA} or later, and there is {f'Java {version}' if version else 'none'}"
    return ""


if __name__ == "__main__":
    sys.exit(main())
