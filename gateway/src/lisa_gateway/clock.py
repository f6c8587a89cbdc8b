"""The server's clock, as a gateway estimates it between its looks."""

import time

from lisa_consumer import AsyncLender

__all__ = ["ServerClock"]

_LOOK_S = 10.0
_OLD_S = 60.0


class ServerClock:
    """Estimates the server's time by what it said last, within half a round trip."""

    def __init__(self) -> None:
        self._ahead_ms = 0.0
        self._looked = -_OLD_S

    async def now_ms(self, lender: AsyncLender) -> int:
        """The server's time in ms. Asks the server at most every ten seconds. Raises LisaError."""
        if time.monotonic() - self._looked > _LOOK_S:
            began = time.monotonic()
            told = await lender.server_time()
            ended = time.monotonic()
            self._ahead_ms = told - (began + ended) / 2 * 1000
            self._looked = ended
        return self.estimate_ms()

    def estimate_ms(self) -> int:
        """The same without a look."""
        return round(time.monotonic() * 1000 + self._ahead_ms)
