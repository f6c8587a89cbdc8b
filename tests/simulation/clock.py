"""Virtual time: two files that clock.c reads, one in this process and one in the server."""

import mmap
import os
from pathlib import Path

__all__ = ["BOOT_US", "EPOCH_US", "Clock"]

EPOCH_US, BOOT_US = 1_700_000_000_000_000, 1_000_000_000
"""The wall clock and the monotonic clock at the start of a run, in µs."""

_SIZE = 16


class Clock:
    """The time of a run, in µs since its start. Wall clocks may be shifted; the monotonic clock is the same for all."""

    def __init__(self, programs: Path, server: Path) -> None:
        self.us = 0
        self.server_shift_us = 0
        """How far the wall clock of the server is ahead."""
        self._programs, self._server = _mapped(programs), _mapped(server)
        self.show()
        self.show_server()

    def show(self, shift_us: int = 0) -> None:
        """Sets the clocks of this process, with the wall clock of the program that runs now."""
        self._programs[0], self._programs[1] = EPOCH_US + self.us + shift_us, BOOT_US + self.us

    def show_server(self) -> None:
        """Sets the clocks of the server, before it is asked anything."""
        self._server[0], self._server[1] = EPOCH_US + self.us + self.server_shift_us, BOOT_US + self.us

    @property
    def server_ms(self) -> float:
        """The wall clock of the server."""
        return (EPOCH_US + self.us + self.server_shift_us) / 1000


def _mapped(path: Path) -> memoryview:
    """The two numbers in a file."""
    file = os.open(path, os.O_RDWR | os.O_CREAT)
    os.ftruncate(file, _SIZE)
    mapped = mmap.mmap(file, _SIZE)
    os.close(file)
    return memoryview(mapped).cast("q")
