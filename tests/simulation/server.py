"""The real server, on the simulated clock. It may be killed, and then it loses the end of its append-only file."""

import ctypes
import os
import select
import signal
import subprocess
from collections import deque
from pathlib import Path
from typing import Any

from simulation.clock import Clock
from simulation.wire import Wire

__all__ = ["Server", "die_with_parent"]

_OPTIONS = (
    *("--port", "0", "--save", "", "--appendonly", "yes", "--appendfsync", "no", "--auto-aof-rewrite-percentage", "0"),
    # Timers of its own would run at moments of the real clock.
    *("--activerehashing", "no", "--enable-debug-command", "local", "--aof-load-truncated", "yes"),
    *("--lazyfree-lazy-server-del", "no", "--lazyfree-lazy-user-del", "no", "--maxclients", "1000"),
)
_REMEMBERED_S = 3.0
_PDEATHSIG = 1
"""PR_SET_PDEATHSIG of prctl(2)."""


def die_with_parent() -> None:
    """Has the kernel end this process when its parent ends, in whatever way."""
    ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)


class Server:
    """One server behind a Unix socket in a directory of its own."""

    def __init__(self, binary: Path, directory: Path, clock: Clock, environment: dict[str, str]) -> None:
        self.path = directory / "server"
        self._binary, self._directory, self._clock = binary, directory, clock
        self._environment = environment
        self._log = directory / "appendonlydir" / "appendonly.aof.1.incr.aof"
        self._process: subprocess.Popen[bytes] | None = None
        self._control: Wire | None = None
        self._sizes: deque[tuple[int, int]] = deque()
        """When the append-only file had which size, over the last seconds."""

    @property
    def runs(self) -> bool:
        """Whether it takes connections."""
        return self._process is not None

    @property
    def url(self) -> str:
        """For the oracle, which asks it beside the simulated network."""
        return f"unix://{self.path}"

    def start(self) -> None:
        """Starts it with what its append-only file holds."""
        self.path.unlink(missing_ok=True)
        self._clock.show_server()
        with (self._directory / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._binary, *_OPTIONS, "--unixsocket", self.path, "--dir", self._directory],
                env=self._environment,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - this process has one thread
            )
        while self._control is None:
            self._control = self._connected()
        self.ask("DEBUG", "SET-ACTIVE-EXPIRE", "0")

    def _connected(self) -> Wire | None:
        """The relay's own connection, once the server has loaded its data."""
        assert self._process
        if self._process.poll() is not None:
            raise RuntimeError(f"the server ended by itself: {self._directory / 'server.log'}")
        if not self.path.exists():
            select.select([], [], [], 0.002)
            return None
        try:
            wire = Wire(self.path)
        except OSError:
            return None
        # On one connection, so that those of programs have the same numbers however long the loading takes.
        while wire.ask("PING") != b"PONG":
            select.select([], [], [], 0.002)
        return wire

    def ask(self, *command: str | int) -> Any:
        """A command of the world itself, which no fault hits."""
        assert self._control
        self._clock.show_server()
        return self._control.ask(*command)

    def flush(self) -> None:
        """Returns once the server has seen what came before, and sent what it had for others."""
        assert self._control
        self._control.ask("PING")

    def remember(self) -> bool:
        """Remembers how long its append-only file is now. Returns whether it has grown."""
        size = self._log.stat().st_size
        if self._sizes and self._sizes[-1][1] == size:
            return False
        self._sizes.append((self._clock.us, size))
        while self._sizes[0][0] < self._clock.us - _REMEMBERED_S * 1e6 and len(self._sizes) > 1:
            self._sizes.popleft()
        return True

    def unblock(self, id: int) -> None:
        """Ends a blocking read, as its own time-out does."""
        self.ask("CLIENT", "UNBLOCK", id, "TIMEOUT")

    def kill(self, loss_s: float) -> None:
        """As a power cut: what it wrote in the last `loss_s` seconds never reached the disk."""
        assert self._process
        assert self._control
        self._process.kill()
        self._process.wait()
        self._control.close()
        self._process = self._control = None
        until = self._clock.us - loss_s * 1e6
        kept = [size for us, size in self._sizes if us <= until]
        size = kept[-1] if kept else self._sizes[0][1]
        os.truncate(self._log, size)
        self._sizes.clear()
        self._sizes.append((self._clock.us, size))

    def close(self) -> None:
        """Ends it for good."""
        if self._process:
            self._process.kill()
            self._process.wait()
