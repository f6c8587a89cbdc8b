"""The server's clock, as a gateway estimates it between its looks."""

import time
from collections import deque

from lisa_consumer import AsyncLender

__all__ = ["ServerClock"]

_LOOK_S = 10.0
_LOOKS = 60


class ServerClock:
    """Estimates the server's time by what it said lately. It may be slow by a round trip, and is never fast.

    A clock that was set is known from the next look on.
    """

    def __init__(self) -> None:
        self._offsets: deque[float] = deque(maxlen=_LOOKS)
        self._ahead_ms = 0.0
        self._looked = float("-inf")

    async def now_ms(self, lender: AsyncLender) -> int:
        """The server's time in ms. Asks the server if it was not asked for ten seconds. Raises LisaError."""
        if time.monotonic() - self._looked > _LOOK_S:
            await self.look(lender)
        return int(time.monotonic() * 1000 + self._ahead_ms)

    async def look(self, lender: AsyncLender) -> None:
        """Asks the server. Raises LisaError."""
        asked = time.monotonic()
        told = await lender.server_time()
        self._looked = time.monotonic()
        if told - asked * 1000 < self._ahead_ms - 1:
            # It was set back: not even the longest way explains so early a time.
            self._offsets.clear()
        # The answer was on its way for a while: the most advanced of the latest is the closest.
        self._offsets.append(told - self._looked * 1000)
        self._ahead_ms = max(self._offsets)
