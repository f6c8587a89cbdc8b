"""What the programs of the pipeline agree on."""

from pathlib import Path

__all__ = ["COMPLETE", "LEAD_MS", "MAX_RETRIES", "departures_in", "report_in"]

LEAD_MS = 10_000
"""A file comes at least so long before the first of its calls is due: the first batch takes Spark several seconds."""

COMPLETE = "_SUCCESS"
"""Lies in the folder once no more files come. Spark overlooks names that begin so."""

MAX_RETRIES = 1


def departures_in(directory: Path) -> Path:
    """The folder into which files of departures come."""
    return directory / "departures"


def report_in(directory: Path) -> Path:
    """What the last job has found."""
    return directory / "report.json"
