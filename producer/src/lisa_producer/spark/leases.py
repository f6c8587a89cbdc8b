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

_ROUNDS = 4
"""Rounds of renewals within one visibility timeout. A lease is renewed once it is as old as a round is long, so while it
has half of its time left or more: one round may fail."""
_RETRY_S = 1.0


class LeaseKeeper:
    """Renews the leases of one consumer in a thread, until stopped.

    `renew` returns a flow that renews those which are older than a share of the visibility timeout. Its result is that
    timeout, in seconds.
    """

    def __init__(self, connect: Callable[[], Connection], renew: Callable[[float], Flow[float]]) -> None:
        self._connect = connect
        self._renew = renew
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
        wait = 0.0
        with self._connect() as connection:
            while not self._stopped.wait(wait):
                try:
                    wait = connection.run(self._renew(1 / _ROUNDS)) / _ROUNDS
                except LisaError as error:
                    logger.warning("lease renewal failed: %s", error, extra=event("renewal_failed", error=str(error)))
                    wait = _RETRY_S
