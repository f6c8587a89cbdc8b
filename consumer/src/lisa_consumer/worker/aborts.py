"""Finds out which of the held deliveries an operator has aborted."""

import time

from lisa_common.client.async_connection import AsyncConnection
from lisa_consumer.delivery.core import Core
from lisa_consumer.worker.executor import Executor
from lisa_consumer.worker.leases import Leases

__all__ = ["Aborts"]

_AGE_S = 1.0
"""How old the deliveries are that it asks for: quick handlers cost nothing."""


class Aborts:
    """Asks the server about deliveries that are held for longer than a second.

    An abort is complete at the server. This only makes handlers end that work for nothing.
    """

    def __init__(self, connection: AsyncConnection, core: Core, leases: Leases, executor: Executor) -> None:
        self._connection, self._core, self._leases, self._executor = connection, core, leases, executor

    async def look(self) -> None:
        """Asks once. Raises LisaError."""
        since = time.monotonic() - _AGE_S
        # A renewal may have found first that the lease is lost.
        known = dict.fromkeys([*self._leases.held, *self._executor.called])
        held = [each for each in known if each.read_at < since and each.may_be_aborted]
        if held:
            aborted = await self._connection.run(self._core.find_aborted([each.delivery for each in held]))
            self._executor.abort([each for each, is_aborted in zip(held, aborted, strict=True) if is_aborted])
