"""When messages were due and when a handler had them: written by consumers of any kind, read by the suite.

Consumer, server and suite share one machine, so that `time.time()` is the server's clock. Peers' workers import this in
environments of their own: it needs nothing but the standard library.
"""

import array
import atexit
import os
import threading
import time
from collections import deque
from pathlib import Path

__all__ = ["BODY_BYTES", "Recorder", "Stamp", "body_of", "count_stamps", "due_of", "read_stamps"]

BODY_BYTES = 200
_FLUSH_S = 0.1
_DUE_CHARACTERS = 17
_STAMP_BYTES = 16

Stamp = tuple[float, float]
"""When a message was due, and when a handler had it; seconds since the epoch."""


def body_of(due_s: float) -> str:
    """A body of 200 bytes that says when it is due."""
    return f"{due_s:0{_DUE_CHARACTERS}.6f}".ljust(BODY_BYTES, "x")


def due_of(body: str | bytes) -> float:
    """When a body says that it is due."""
    return float(body[:_DUE_CHARACTERS])


class Recorder:
    """Notes each message with the time at which its handler began, in a file for each process.

    Notes are kept in memory and written ten times a second, so that a handler costs next to nothing.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory or Path(os.environ["BENCH_STAMPS"])
        self._notes: deque[Stamp] = deque()
        self._writing = threading.Lock()
        self._begun = False
        os.register_at_fork(after_in_child=self._forget)
        atexit.register(self.flush)

    def __call__(self, due_s: float) -> None:
        """Notes that a handler has a message that was due then."""
        self._notes.append((due_s, time.time()))
        if not self._begun:
            self._begun = True
            threading.Thread(target=self._write, daemon=True).start()

    def flush(self) -> None:
        """Writes what was noted."""
        stamps = array.array("d")
        with self._writing:
            while self._notes:
                stamps.extend(self._notes.popleft())
            if stamps:
                with (self._directory / f"{os.getpid()}.stamps").open("ab") as file:
                    stamps.tofile(file)

    def _write(self) -> None:
        pause = threading.Event()
        while True:
            pause.wait(_FLUSH_S)
            self.flush()

    def _forget(self) -> None:
        # Of a fork: neither the parent's notes nor its thread are ours.
        self._notes.clear()
        self._writing = threading.Lock()
        self._begun = False


def count_stamps(directory: Path) -> int:
    """How many messages have been noted by all processes so far."""
    return sum(path.stat().st_size for path in directory.glob("*.stamps")) // _STAMP_BYTES


def read_stamps(directory: Path) -> list[Stamp]:
    """What all processes have noted so far."""
    stamps: list[Stamp] = []
    for path in directory.glob("*.stamps"):
        values = array.array("d")
        values.frombytes(path.read_bytes()[: path.stat().st_size // _STAMP_BYTES * _STAMP_BYTES])
        stamps += zip(values[::2], values[1::2], strict=True)
    return stamps
