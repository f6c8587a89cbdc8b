"""The server's clock, as a manager knows it."""

from collections import deque

__all__ = ["ServerClock"]


class ServerClock:
    """Maps the server's clock to the monotonic one, by the time in its latest replies.

    A reply takes a while to arrive, so its time is a little behind. The largest offset of recent replies is nearest.
    """

    def __init__(self) -> None:
        self._offsets: deque[float] = deque(maxlen=16)
        self._ahead_s = 0.0

    def see(self, now_ms: float, moment: float) -> None:
        """Notes the server's time in a reply that arrived at that moment."""
        self._offsets.append(now_ms / 1000 - moment)
        self._ahead_s = max(self._offsets)

    def moment_of(self, server_ms: float) -> float:
        """Returns the moment when the server's clock shows that time."""
        return server_ms / 1000 - self._ahead_s

    def ms_at(self, moment: float) -> int:
        """Returns what the server's clock shows at a moment, in ms."""
        return int((moment + self._ahead_s) * 1000)
