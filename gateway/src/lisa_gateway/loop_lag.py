"""Measures how long the event loop keeps its requests waiting."""

import asyncio
import time

__all__ = ["LoopLag"]

_TICK_S = 0.02

_WINDOW_S = 15.0


class LoopLag:
    """The longest time for which the loop did not come round, while `run` is running."""

    def __init__(self) -> None:
        self._present_s = self._before_s = 0.0
        self._ends_s = 0.0

    @property
    def worst_s(self) -> float:
        """The longest of the last 15 to 30 seconds, in seconds."""
        return max(self._present_s, self._before_s)

    async def run(self) -> None:
        """Measures until cancelled."""
        while True:
            began_s = time.monotonic()
            await asyncio.sleep(_TICK_S)
            now_s = time.monotonic()
            if now_s >= self._ends_s:
                self._before_s, self._present_s, self._ends_s = self._present_s, 0.0, now_s + _WINDOW_S
            self._present_s = max(self._present_s, now_s - began_s - _TICK_S)
