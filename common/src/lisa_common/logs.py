"""Logging of the programs: one line each on stderr, for people and for collectors."""

import logging
import time

__all__ = ["configure_logging"]


def configure_logging(level: str) -> None:
    """Sets up logging for a program. Lines begin with the time in UTC, the level and the part of Lisa that speaks."""
    formatter = logging.Formatter("%(asctime)s.%(msecs)03dZ %(levelname)-7s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    logging.basicConfig(level=level.upper(), handlers=[handler])
    # It tells of each run of each job, and, while the server is away, of each that it leaves out.
    logging.getLogger("apscheduler").setLevel(logging.ERROR)
