"""The demos' processes: each logs to a file of its own, and none outlives the demo."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

__all__ = ["DemoFailed", "Processes"]

_TAIL_LINES = 15
_STOP_S = 10.0


class DemoFailed(Exception):
    """The demo cannot go on, or ended in error."""


class Processes:
    """Starts processes, and ends those that still run when the block ends."""

    def __init__(self, logs: Path, environment: Mapping[str, str]) -> None:
        self._logs = logs
        self._environment = {**os.environ, **environment}
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> int:
        """Starts a process under a name, and returns its process id."""
        with (self._logs / f"{name}.log").open("wb") as log:
            self._running[name] = subprocess.Popen(  # noqa: S603 - our own programs
                command,
                env={**self._environment, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # In its own session: Ctrl-C reaches it through us only, and SIGKILL reaches its children as well.
                start_new_session=True,
            )
        return self._running[name].pid

    def kill(self, name: str) -> None:
        """Ends a process by SIGKILL, and returns once it has ended."""
        _kill(self._running.pop(name))

    def done(self, name: str) -> bool:
        """Whether a process has ended by itself; raises DemoFailed when it has not ended well."""
        code = self._running[name].poll() if name in self._running else 0
        if code:
            raise DemoFailed(f"{name} ended with {code}")
        if code == 0:
            self._running.pop(name, None)
        return code == 0

    def check(self, *names: str) -> None:
        """Raises DemoFailed when any of these has ended by itself."""
        for name in names:
            if name in self._running and (code := self._running[name].poll()) is not None:
                raise DemoFailed(f"{name} ended with {code}")

    def said(self, name: str, text: str) -> bool:
        """Whether a process has logged a text."""
        return text in (self._logs / f"{name}.log").read_text("utf-8", "replace")

    def stop(self) -> None:
        """Ends all processes by SIGTERM; raises DemoFailed when one does not end in time with exit code 0."""
        for process in self._running.values():
            process.terminate()
        codes = {}
        for name, process in list(self._running.items()):
            try:
                codes[name] = process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                codes[name] = _kill(process)
            # Only now: after a second Ctrl-C meanwhile, the end of the block ends the rest.
            del self._running[name]
        if bad := [f"{name} with {code}" for name, code in codes.items() if code != 0]:
            raise DemoFailed(f"told to stop, these did not end well: {', '.join(bad)}")

    def tails(self) -> str:
        """The last lines of every log."""
        parts = []
        for log in sorted(self._logs.glob("*.log")):
            last = log.read_text("utf-8", "replace").splitlines()[-_TAIL_LINES:]
            parts.append("\n".join([f"--- {log.stem}", *last]))
        return "\n".join(parts)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._running.values():
            _kill(process)


def _kill(process: "subprocess.Popen[bytes]") -> int:
    """Ends a process and its children by SIGKILL, and returns once it has ended."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    return process.wait()
