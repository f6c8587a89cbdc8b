"""Programs of Lisa as forks of a process that has imported them: a start takes a tenth of the processor time."""

import atexit
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path

__all__ = ["Forked", "may_fork"]

_ENTRIES = {name: f"{name.replace('-', '_')}.cli" for name in ("lisa-consumer", "lisa-gateway", "lisa-manager")}
_IMPORTED = [
    "lisa_consumer.commands",
    "lisa_gateway.commands",
    "lisa_gateway.gateway",
    "lisa_manager.commands",
    "lisa_manager.daemon",
]

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(_IMPORTED)


@atexit.register
def _kill_what_is_left() -> None:
    """Python would wait for them."""
    for process in multiprocessing.active_children():
        process.kill()


def may_fork(command: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether a command is a program of Lisa whose environment differs from that of the tests by its settings only."""
    changed = {name for name, _ in environment.items() ^ os.environ.items()}
    return Path(command[0]).name in _ENTRIES and all(name.startswith("LISA_") for name in changed)


class Forked:
    """A program in a process of its own, with the methods of `subprocess.Popen` that tests need."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path, cwd: Path) -> None:
        log.write_bytes(b"")
        self._process = _FORKS.Process(target=_run, args=(list(command), dict(environment), log, cwd))
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """Its exit code, minus the signal that has ended it; None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Waits until it has ended. Returns its exit code; raises TimeoutExpired."""
        self._process.join(timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        """Sends it a signal, if it has not ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Ends it as a crash does."""
        self.send_signal(signal.SIGKILL)


def _run(command: list[str], environment: dict[str, str], log: Path, cwd: Path) -> None:
    output = os.open(log, os.O_WRONLY)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    sys.argv = command
    import_module(_ENTRIES[Path(command[0]).name]).main()
