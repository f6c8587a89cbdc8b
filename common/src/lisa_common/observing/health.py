"""The health of a program, for probes, a service manager, and the parent of several processes."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from lisa_common.observing.siblings import state_writer
from lisa_common.observing.systemd import Notifier

__all__ = ["Health"]

_BEAT_S = 1.0

_STUCK_S = 30.0
"""A program whose event loop has not run for this long is stuck: a restart would help."""

Check = Callable[[], str]
"""Returns what is wrong, or "" if nothing is."""


class Health:
    """The health of one program: alive while its event loop runs, ready while its checks find nothing wrong.

    Thread-safe: probes ask from other threads.
    """

    def __init__(self) -> None:
        self._checks: dict[str, Check] = {}
        self._beaten_at = time.monotonic()
        self.remarks: list[Check] = []
        """Return what a person should know, though a restart or a balancer cannot help."""
        self.notifies = False
        """Whether this is the health of the whole process. If so, it notifies the service manager."""

    def check(self, name: str, check: Check) -> None:
        """Adds a check, or replaces that of the same name. It must only use what the program knows already."""
        self._checks[name] = check

    def find_remark(self) -> str:
        """What a person should know though the program is ready; "" for nothing."""
        return "; ".join(filter(None, (remark() for remark in self.remarks)))

    def find_death(self) -> str:
        """Why the program is stuck; "" if it is not."""
        silent_s = time.monotonic() - self._beaten_at
        return f"the event loop has not run for {silent_s:.0f} s" if silent_s > _STUCK_S else ""

    def find_problem(self) -> str:
        """Why the program is not ready; "" if it is."""
        if not self._checks:
            return "it has not started"
        if stuck := self.find_death():
            return stuck
        problems = {name: check() for name, check in list(self._checks.items())}
        return "; ".join(f"{name}: {problem}" for name, problem in problems.items() if problem)

    @asynccontextmanager
    async def waiting(self, name: str) -> AsyncIterator[Callable[[str], None]]:
        """Alive and not ready while its block waits for something; yields a function that takes the reason."""
        reason = "no answer yet"

        def explain(text: str) -> None:
            nonlocal reason
            reason = text

        self.check(name, lambda: reason)
        beating = asyncio.create_task(self._keep_beating())
        try:
            yield explain
        finally:
            beating.cancel()
            await asyncio.wait((beating,))
            self._checks.pop(name, None)

    async def _keep_beating(self) -> None:
        while True:
            self._beaten_at = time.monotonic()
            await asyncio.sleep(_BEAT_S)

    async def run(self, on_beat: Callable[[], None] = lambda: None) -> None:
        """Beats until cancelled: notifies the service manager, writes the state file, calls `on_beat`."""
        notifier, write_state = Notifier(enabled=self.notifies), state_writer()
        interval_s = min(_BEAT_S, notifier.interval_s)
        try:
            while True:
                self._beaten_at = time.monotonic()
                on_beat()
                problem = self.find_problem()
                notifier.beat(ready=not problem)
                if write_state:
                    write_state(problem)
                await asyncio.sleep(interval_s)
        finally:
            notifier.stop()
