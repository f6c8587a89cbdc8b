"""The journals of the demo: one JSON line for each event, one file for each process."""

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lisa_common.client.closing import Closing

__all__ = [
    "Begun",
    "Cancelled",
    "Ended",
    "Event",
    "Journal",
    "Killed",
    "Opened",
    "Rescheduled",
    "Sent",
    "Streamed",
    "Tail",
]


@dataclass(frozen=True, slots=True)
class Opened:
    """The day's first minute on the server's clock, and the numbers that map the others."""

    start_ms: int
    first_min: int
    last_min: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Sent:
    """A send that returned."""

    id: str
    topic: str
    due_ms: int
    max_retries: int


@dataclass(frozen=True, slots=True)
class Rescheduled:
    """A reschedule that returned, with its outcome."""

    id: str
    due_ms: int
    outcome: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class Cancelled:
    """A cancel that returned, with its outcome."""

    id: str
    outcome: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class Begun:
    """A handler was called."""

    id: str
    attempt: int
    worker: str
    topic: str
    due_ms: int
    at_ms: int
    sent_ms: int = 0


@dataclass(frozen=True, slots=True)
class Ended:
    """A handler ended: without an error it returned, and its ack follows."""

    id: str
    attempt: int
    worker: str
    at_ms: int
    error: str = ""


@dataclass(frozen=True, slots=True)
class Killed:
    """A worker was killed while it held these deliveries, pairs of id and attempt."""

    worker: str
    at_ms: int
    held: list[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class Streamed:
    """A stream of files is sent: the rows that Spark has read, and the number of batches."""

    rows: int
    batches: int


Event = Opened | Sent | Rescheduled | Cancelled | Begun | Ended | Killed | Streamed

_KINDS: dict[str, type[Event]] = {
    kind.__name__: kind for kind in (Opened, Sent, Rescheduled, Cancelled, Begun, Ended, Killed, Streamed)
}


class Journal(Closing):
    """Appends events to a file. When `note` returns, the operating system has the line: no SIGKILL loses it."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, event: Event) -> None:
        """Appends one event."""
        line = json.dumps({"kind": type(event).__name__, **asdict(event)})
        os.write(self._file, line.encode() + b"\n")

    def close(self) -> None:
        """Closes the file."""
        os.close(self._file)


class Tail:
    """Reads the journals of a directory as they grow."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read: dict[Path, int] = {}

    def new(self) -> Iterator[Event]:
        """The events since the last call; an unfinished line is left for the next call."""
        for path in sorted(self._directory.glob("*.jsonl")):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    self._read[path] = self._read.get(path, 0) + len(line)
                    yield _event(json.loads(line))


def _event(fields: dict[str, Any]) -> Event:
    kind = _KINDS[fields.pop("kind")]
    if kind is Killed:
        fields["held"] = [(id, attempt) for id, attempt in fields["held"]]
    return kind(**fields)
