"""Logging of the programs: one line per record on stderr, for people and for collectors."""

import logging
import textwrap
import time
from typing import Any

from lisa_common.escaping import shown, shown_lines

__all__ = ["configure_logging"]


class _Formatter(logging.Formatter):
    """Prints each record on one line, and a traceback below it on indented lines, unlike any record."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - as in logging
        return shown(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802
        return _below(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:  # noqa: N802
        return _below(super().formatStack(stack_info))


def _below(text: str) -> str:
    return textwrap.indent(shown_lines(text), "  ", lambda _: True)


def configure_logging(level: str) -> None:
    """Sets up logging for a program. Lines begin with the time in UTC, the level and the logger."""
    formatter = _Formatter("%(asctime)s.%(msecs)03dZ %(levelname)-7s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    logging.basicConfig(level=level.upper(), handlers=[handler])
    # It would log each run of each job, and each skipped run while the server is away.
    logging.getLogger("apscheduler").setLevel(logging.ERROR)
