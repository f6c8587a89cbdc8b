"""Notices which of the held deliveries an operator has aborted."""

import asyncio
import logging
import time

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.errors import LisaError
from lisa_common.logs import event
from lisa_consumer.delivery.core import Core
from lisa_consumer.worker.executor import Executor
from lisa_consumer.worker.leases import Leases

__all__ = ["Aborts"]

logger = logging.getLogger(__name__)

_PAUSE_S = 1.0
"""How often to ask, and how old the deliveries are that it asks for: quick handlers cost nothing."""


class Aborts:
    """Asks the server once a second about deliveries that are held for longer than that.

    An abort is complete at the server. This only makes handlers end that work for nothing.
    """

    def __init__(self, connection: AsyncConnection, core: Core, leases: Leases, executor: Executor) -> None:
        self._connection, self._core, self._leases, self._executor = connection, core, leases, executor

    async def run(self) -> None:
        """Asks until cancelled. An outage is the reader's to report."""
        while True:
            await asyncio.sleep(_PAUSE_S)
            try:
                async with asyncio.timeout(_PAUSE_S):
                    await self._look()
            except (LisaError, TimeoutError) as error:
                logger.debug("cannot look for aborts: %s", error, extra=event("aborts_missed", error=str(error)))

    async def _look(self) -> None:
        since = time.monotonic() - _PAUSE_S
        # A renewal may have found first that the lease is lost.
        known = dict.fromkeys([*self._leases.held, *self._executor.called])
        held = [each for each in known if each.read_at < since and each.may_be_cut]
        if held:
            aborted = await self._connection.run(self._core.find_aborted([each.delivery for each in held]))
            self._executor.abort([each for each, is_aborted in zip(held, aborted, strict=True) if is_aborted])
