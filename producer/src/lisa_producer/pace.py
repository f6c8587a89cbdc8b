"""How many messages go into one call, by how long the server takes: many senders at once must not starve others."""

__all__ = ["Pace"]

_LONG_S, _SHORT_S = 0.025, 0.01
"""A call may wait for one call of each other sender, as a server runs them in turn. Beyond the first time calls
shrink, so that others wait less long; below the second they grow."""
_LEAST = 20
"""Below it, calls would cost more than their messages."""


class Pace:
    """The size of calls of one producer. It halves when the server is slow, and grows again by a quarter."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.messages = most
        """Most messages in one call, for now."""

    def note(self, seconds: float, calls: int) -> None:
        """Takes the time of a round trip with so many calls to one server, which other senders' calls came between."""
        each = seconds / max(1, calls)
        if each > _LONG_S:
            self.messages = max(min(_LEAST, self._most), self.messages // 2)
        elif each < _SHORT_S:
            self.messages = min(self._most, self.messages + self.messages // 4 + 1)
