"""The server's clock, by which everything in the demo is judged."""

import time
from typing import Self

from lisa_common.client.connection import Connection
from lisa_common.protocol.call import Call, command

__all__ = ["ServerTime"]

_TRIES = 20

_TIME: Call[list[bytes]] = command("TIME")


class ServerTime:
    """Tells the server's time without a round trip, which would take longer than the lags to be measured.

    The difference to this machine's clock is measured once, exact to half of the quickest round trip: far below 1 ms
    on one machine. The clocks of a Cluster's nodes are assumed to agree.
    """

    def __init__(self, offset_s: float) -> None:
        self._offset_s = offset_s

    @classmethod
    def of(cls, connection: Connection) -> Self:
        """Measures the clock of a server."""
        return cls(min(_measure(connection) for _ in range(_TRIES))[1])

    def now_ms(self) -> int:
        """Whole milliseconds since the epoch."""
        return int((time.time() + self._offset_s) * 1000)


def _measure(connection: Connection) -> tuple[float, float]:
    """The duration of a round trip, and by how much the server's clock is ahead."""
    asked = time.time()
    seconds, microseconds = connection.call(_TIME)
    answered = time.time()
    return answered - asked, int(seconds) + int(microseconds) / 1e6 - (asked + answered) / 2
