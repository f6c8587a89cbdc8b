"""A value of the `failures` hash: how a copy was settled without an ack.

`lua/include/failure.lua` is the twin of this file.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Failure", "first_line", "read_failure", "with_trace"]

# Valid numbers have no more digits: Lua would lose them, and Python refuses thousands of them.
_NUMBER, _ENTRY = rb"([0-9]{1,15})", rb"[0-9]{1,20}-[0-9]{1,20}"
_LAYOUT = re.compile(rb"%b (%b) (%b|-) %b %b (\S+) (.*)" % (_NUMBER, _ENTRY, _ENTRY, _NUMBER, _NUMBER), re.DOTALL)

_FRAME = "\n  at "
"""Precedes each frame of a traceback, behind the text of the error."""

_RELEASE = "\n  of release "
"""Precedes the release of the handler, between the text of the error and the first frame."""

_NAMED_RELEASE = re.compile(rf"(.*){_RELEASE}(\S+)", re.DOTALL)

_LINE = 200
"""Most characters of the first line of an error."""


@dataclass(frozen=True, slots=True)
class Failure:
    """How the last delivery of a copy ended, and how many attempts it has spent."""

    attempts: int
    entry: str
    next_entry: str | None
    due_ms: int
    at_ms: int
    reason: str
    error: str
    trace: tuple[str, ...] = ()
    """The last frames of the handler's traceback as "file:line in function", the innermost last; empty if unknown."""
    release: str = ""
    """The release of the handler, as its consumer's setting `release` named it; empty if unknown."""

    @property
    def details(self) -> str:
        """The error, and the frames of its traceback, each on a line."""
        return with_trace(self.error, self.trace)


def with_trace(error: str, trace: Sequence[str], release: str = "") -> str:
    """The text of an error, the release of its handler, and the frames of its traceback, as one text to store."""
    return "".join([error, _RELEASE + release if release else "", *(_FRAME + frame for frame in trace)])


def first_line(error: str) -> str:
    """The first line of an error, up to 200 characters."""
    return next(iter(error.splitlines()), "")[:_LINE]


def read_failure(value: bytes | None) -> Failure | None:
    """Reads a value of `failures`; None for a missing or damaged one."""
    match = _LAYOUT.fullmatch(value or b"")
    if match is None:
        return None
    attempts, entry, following, due, at, reason, text = match.groups()
    error, *trace = text.decode("utf-8", "replace").split(_FRAME)
    named = _NAMED_RELEASE.fullmatch(error)
    return Failure(
        attempts=int(attempts),
        entry=entry.decode(),
        next_entry=None if following == b"-" else following.decode(),
        due_ms=int(due),
        at_ms=int(at),
        reason=reason.decode("utf-8", "replace"),
        error=named[1] if named else error,
        trace=tuple(trace),
        release=named[2] if named else "",
    )
