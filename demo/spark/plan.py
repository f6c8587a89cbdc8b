"""Names and numbers that the programs of the pipeline share."""

from pathlib import Path

__all__ = ["COMPLETE", "LEAD_MS", "MAX_RETRIES", "departures_in", "report_in"]

LEAD_MS = 10_000
"""Least time from the arrival of a file to its first call: the first batch takes Spark several seconds."""

COMPLETE = "_SUCCESS"
"""A file of this name marks a complete folder. Spark ignores names that begin with an underscore."""

MAX_RETRIES = 1


def departures_in(directory: Path) -> Path:
    """The folder into which files of departures come."""
    return directory / "departures"


def report_in(directory: Path) -> Path:
    """The file of the last job's report."""
    return directory / "report.json"
