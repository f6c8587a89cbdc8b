"""Renews the leases of a query's micro-batch while Spark works on it."""

import logging
import threading
from collections.abc import Callable

from lisa_common.client.connection import Connection
from lisa_common.errors import LisaError
from lisa_common.logs import event
from lisa_common.protocol.call import Flow

__all__ = ["LeaseKeeper"]

logger = logging.getLogger(__name__)

_ROUNDS = 3
"""Rounds of renewals within one visibility timeout.

A round renews leases that are half as old as a round is long, or older; so the others still have half of their time
left in the next round, and one round may fail.
"""
_RETRY_S = 1.0


class LeaseKeeper:
    """Renews the leases of one consumer in a thread, until stopped.

    `renew` returns a flow that renews those which are older than a share of the visibility timeout. Its result is that
    timeout, in seconds. The first round begins after a third of `fresh_s`, for which all leases will surely last.
    """

    def __init__(
        self, connect: Callable[[], Connection], renew: Callable[[float], Flow[float]], *, fresh_s: float
    ) -> None:
        self._connect = connect
        self._renew = renew
        self._fresh_s = fresh_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lisa-leases", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stops the thread; the leases run out."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        wait = self._fresh_s / _ROUNDS
        with self._connect() as connection:
            while not self._stopped.wait(wait):
                try:
                    wait = connection.run(self._renew(0.5 / _ROUNDS)) / _ROUNDS
                except LisaError as error:
                    logger.warning("lease renewal failed: %s", error, extra=event("renewal_failed", error=str(error)))
                    wait = _RETRY_S
