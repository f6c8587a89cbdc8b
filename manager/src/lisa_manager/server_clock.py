"""The server's clock, as a manager knows it."""

from collections import deque

__all__ = ["ServerClock"]

_STEP_S = 0.25
"""Someone has set a clock that differs by more from what was expected. A reply that was as slow looks alike, once."""


class ServerClock:
    """Tells what the server's clock will show when a call gets there, by the monotonic moment at which the call begins.

    So a call may begin before something is due, by the time that a call takes. The quickest of the latest calls counts:
    the next one hardly gets there sooner.
    """

    def __init__(self) -> None:
        self._offsets: deque[float] = deque(maxlen=16)
        self._ahead_s = 0.0

    def see(self, server_ms: float, began: float) -> None:
        """Notes what the server's clock showed to a call that began at that moment."""
        offset = server_ms / 1000 - began
        if abs(offset - self._ahead_s) > _STEP_S:
            self._offsets.clear()
        self._offsets.append(offset)
        self._ahead_s = min(self._offsets)

    def moment_of(self, server_ms: float) -> float:
        """Returns when a call has to begin that is to get there at a time of the server's clock."""
        return server_ms / 1000 - self._ahead_s

    def ms_at(self, moment: float) -> int:
        """Returns what the server's clock will show, in ms, when a call that begins at a moment gets there."""
        return int((moment + self._ahead_s) * 1000)
