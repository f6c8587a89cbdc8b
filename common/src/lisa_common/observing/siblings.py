"""Several processes of one program: each writes its state to a file, which their parent reads.

The parent makes the directory, gives each process a number in it, and removes it at the end. Where metrics are wanted,
the processes keep them there as well; see `prometheus.share_by`.
"""

import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from lisa_common.logs import event
from lisa_common.observing.systemd import NOTIFY_SOCKET

__all__ = ["SharedDirectory", "join_siblings", "state_writer"]

logger = logging.getLogger(__name__)

_DIRECTORY, _NUMBER = "_LISA_SIBLINGS_DIRECTORY", "_LISA_SIBLINGS_NUMBER"
"""Not `LISA_…`: what begins so is a setting."""

_WITH_METRICS = "PROMETHEUS_MULTIPROC_DIR"

_SILENT_S = 10.0
"""A process that has not written its state for this long is not ready."""


class SharedDirectory:
    """The parent's side: a new directory for `count` processes."""

    def __init__(self, count: int, *, with_metrics: bool) -> None:
        self.path = tempfile.mkdtemp(prefix="lisa-processes-")
        self.count = count
        self._with_metrics = with_metrics

    def environment(self, number: int) -> dict[str, str]:
        """The environment of one process. Only the parent notifies the service manager."""
        inherited = {name: value for name, value in os.environ.items() if name != NOTIFY_SOCKET}
        own = {_DIRECTORY: self.path, _NUMBER: str(number)}
        return inherited | own | ({_WITH_METRICS: self.path} if self._with_metrics else {})

    def has_started(self, number: int) -> bool:
        """Whether a process has written its state. It does so once it has started."""
        return _state_file(self.path, number).exists()

    def forget(self, number: int) -> None:
        """Call it when a process has ended: its state and gauges no longer hold. Its counters stay."""
        _state_file(self.path, number).unlink(missing_ok=True)
        if self._with_metrics:
            from lisa_common.observing.prometheus import forget_gauges  # noqa: PLC0415 - an extra

            forget_gauges(self.path, number)

    def find_problem(self) -> str:
        """Which process is not ready, and why; "" if all are."""
        for number in range(self.count):
            try:
                file = _state_file(self.path, number)
                silent_s = time.time() - file.stat().st_mtime
                problem = file.read_text("utf-8")
            except FileNotFoundError:
                return f"process {number} has not started"
            if silent_s > _SILENT_S:
                problem = f"silent for {silent_s:.0f} s"
            if problem:
                return f"process {number}: {problem}"
        return ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


def join_siblings() -> bool:
    """Call it first in a process that may be one of several. Returns whether its parent serves its metrics."""
    if _NUMBER not in os.environ or _WITH_METRICS not in os.environ:
        return False
    from lisa_common.observing.prometheus import share_by  # noqa: PLC0415 - an extra

    share_by(int(os.environ[_NUMBER]))
    return True


def state_writer() -> Callable[[str], None] | None:
    """Writes the state of this process for its parent: what is wrong, or "". None if it is not one of several."""
    directory, number = os.environ.get(_DIRECTORY), os.environ.get(_NUMBER)
    if directory is None or number is None:
        return None
    file = _state_file(directory, int(number))
    new = file.with_suffix(".new")

    def write(problem: str) -> None:
        try:
            new.write_text(problem, "utf-8")
            new.replace(file)
        except OSError as error:
            # The disk is full, or somebody has tidied up. The parent finds this process silent.
            fields = event("state_unwritten", error=str(error))
            logger.debug("cannot write the state of this process: %s", error, extra=fields)

    return write


def _state_file(directory: str, number: int) -> Path:
    return Path(directory) / f"state-{number}"
