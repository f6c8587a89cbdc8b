"""Logging of the programs: one line each on stderr, for people and for collectors."""

import logging
import textwrap
import time
from typing import Any

from lisa_common.escaping import shown, shown_lines

__all__ = ["configure_logging"]


class _Formatter(logging.Formatter):
    """Each record on one line, whatever is in it; a traceback below, with lines that begin as no record does."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - as in logging
        return shown(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802
        return _below(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:  # noqa: N802
        return _below(super().formatStack(stack_info))


def _below(text: str) -> str:
    return textwrap.indent(shown_lines(text), "  ", lambda _: True)


def configure_logging(level: str) -> None:
    """Sets up logging for a program. Lines begin with the time in UTC, the level and the part of Lisa that speaks."""
    formatter = _Formatter("%(asctime)s.%(msecs)03dZ %(levelname)-7s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    logging.basicConfig(level=level.upper(), handlers=[handler])
    # It tells of each run of each job, and, while the server is away, of each that it leaves out.
    logging.getLogger("apscheduler").setLevel(logging.ERROR)
