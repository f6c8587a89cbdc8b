"""Stamps: when messages were due and when their handlers began. Consumers of any kind write them, the suite reads them.

Consumer, server and suite share one machine, so that `time.time()` is the server's clock. Peers' workers import this in
their environments: it needs only the standard library.
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
"""When a message was due, and when its handler began; seconds since the epoch."""


def body_of(due_s: float) -> str:
    """A body of 200 bytes that says when it is due."""
    return f"{due_s:0{_DUE_CHARACTERS}.6f}".ljust(BODY_BYTES, "x")


def due_of(body: str | bytes) -> float:
    """The due time in a body."""
    return float(body[:_DUE_CHARACTERS])


class Recorder:
    """Notes each message with the time at which its handler began, in a file for each process.

    Notes are kept in memory and written ten times a second, so that a handler takes hardly any time.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory or Path(os.environ["BENCH_STAMPS"])
        self._notes: deque[Stamp] = deque()
        self._writing = threading.Lock()
        self._begun = False
        os.register_at_fork(after_in_child=self._forget)
        atexit.register(self.flush)

    def __call__(self, due_s: float) -> None:
        """Notes that the handler of a message has begun; `due_s` is its due time, seconds since the epoch."""
        self._notes.append((due_s, time.time()))
        if not self._begun:
            self._begun = True
            threading.Thread(target=self._write, daemon=True).start()

    def flush(self) -> None:
        """Writes the notes to the file."""
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
        # After a fork: the notes and the thread are the parent's.
        self._notes.clear()
        self._writing = threading.Lock()
        self._begun = False


def count_stamps(directory: Path) -> int:
    """The number of stamps of all processes so far."""
    return sum(path.stat().st_size for path in directory.glob("*.stamps")) // _STAMP_BYTES


def read_stamps(directory: Path) -> list[Stamp]:
    """The stamps of all processes so far."""
    stamps: list[Stamp] = []
    for path in directory.glob("*.stamps"):
        values = array.array("d")
        values.frombytes(path.read_bytes()[: path.stat().st_size // _STAMP_BYTES * _STAMP_BYTES])
        stamps += zip(values[::2], values[1::2], strict=True)
    return stamps
