"""Standard streams that are not there, or take nothing any more."""

import errno
import io
import os
import sys
from pathlib import Path
from typing import TextIO

__all__ = ["OUTPUT_ERRORS", "abandon_output", "provide_streams"]

OUTPUT_ERRORS = (errno.EPIPE, errno.EBADF, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""What the system may say to one who prints."""


class _Closed(io.RawIOBase):
    """Stands for a stream that the program was started without: whoever uses it is told so."""

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def readinto(self, _: object) -> int:
        raise OSError(errno.EBADF, "it is closed")

    def write(self, _: object) -> int:
        raise OSError(errno.EBADF, "it is closed")


def provide_streams() -> None:
    """Gives the program the streams that it was started without, for which Python has None."""
    missing = [name for name in ("stdin", "stdout", "stderr") if getattr(sys, name) is None]
    if "stdin" in missing:
        sys.stdin = io.TextIOWrapper(io.BufferedReader(_Closed()))
    if "stdout" in missing:
        sys.stdout = io.TextIOWrapper(io.BufferedWriter(_Closed()))
    if "stderr" in missing:
        # Nobody is to be told anything; and Python would print to standard output instead.
        sys.stderr = _nowhere()


def abandon_output() -> None:
    """Keeps Python from trying once more, when it ends, to write what standard output did not take."""
    nowhere = _nowhere()
    try:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
    except OSError:
        sys.stdout = nowhere


def _nowhere() -> TextIO:
    return Path(os.devnull).open("w", encoding="utf-8")
