"""Standard streams that are missing or broken."""

import errno
import io
import os
import sys
from pathlib import Path
from typing import Any, TextIO

__all__ = ["OUTPUT_ERRORS", "abandon_output", "provide_streams"]

OUTPUT_ERRORS = (errno.EPIPE, errno.EBADF, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors that writing to standard output may raise."""


class _Closed(io.RawIOBase):
    """Replaces a missing stream; using it raises OSError, unless it is abandoned."""

    is_abandoned = False

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def readinto(self, _: object) -> int:
        raise OSError(errno.EBADF, "it is closed")

    def write(self, data: Any) -> int:
        if not self.is_abandoned:
            raise OSError(errno.EBADF, "it is closed")
        return memoryview(data).nbytes


_missing_output = _Closed()


def provide_streams() -> None:
    """Replaces the standard streams that the program was started without, for which Python has None."""
    missing = [name for name in ("stdin", "stdout", "stderr") if getattr(sys, name) is None]
    if "stdin" in missing:
        sys.stdin = io.TextIOWrapper(io.BufferedReader(_Closed()))
    if "stdout" in missing:
        sys.stdout = io.TextIOWrapper(io.BufferedWriter(_missing_output))
    if "stderr" in missing:
        # Without stderr nothing is printed; Python would use standard output instead.
        sys.stderr = _nowhere()


def abandon_output() -> None:
    """Discards buffered output, so that Python does not write it again at exit."""
    nowhere = _nowhere()
    try:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
    except OSError:
        # From Python 3.13 on, a stream that cannot be flushed at its end says so on standard error.
        _missing_output.is_abandoned = True
        sys.stdout = nowhere


def _nowhere() -> TextIO:
    return Path(os.devnull).open("w", encoding="utf-8")
