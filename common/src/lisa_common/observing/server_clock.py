"""The server's clock, as its clients know it."""

from collections import deque

__all__ = ["ServerClock"]


class ServerClock:
    """Maps the server's clock to the monotonic one, by the times in the latest replies.

    The server read its clock after a call began, and before its reply arrived.
    """

    def __init__(self) -> None:
        self._calls: deque[tuple[float, float]] = deque(maxlen=16)
        """By how much the server's clock was ahead of the begin of each call, and of its reply, in seconds."""
        self._ahead_of_call_s = self._ahead_s = 0.0

    def see(self, server_ms: float, began: float, arrived: float) -> None:
        """Notes the server's time in the reply to a call."""
        server_s = server_ms / 1000
        if not (server_s - arrived <= self._ahead_of_call_s and self._ahead_s <= server_s - began):
            # A slow call contradicts no other: one of the clocks was set.
            self._calls.clear()
        self._calls.append((server_s - began, server_s - arrived))
        # The quickest call: the next one hardly gets there sooner. And the quickest reply, whose time is the nearest.
        self._ahead_of_call_s = min(call for call, _ in self._calls)
        self._ahead_s = max(reply for _, reply in self._calls)

    def begin_for(self, server_ms: float) -> float:
        """Returns when a call has to begin to reach the server at a time of its clock."""
        return server_ms / 1000 - self._ahead_of_call_s

    def moment_of(self, server_ms: float) -> float:
        """Returns the moment when the server's clock shows that time; rather later than earlier."""
        return server_ms / 1000 - self._ahead_s

    def ms_at(self, moment: float) -> int:
        """Returns what the server's clock shows at a moment, in ms; rather less than more."""
        return int((moment + self._ahead_s) * 1000)
