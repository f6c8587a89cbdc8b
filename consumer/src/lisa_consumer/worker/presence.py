"""Shows a worker's group that it is alive, and when it ends."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.client.async_tasks import cancel_all
from lisa_common.errors import LisaError
from lisa_common.logs import event
from lisa_common.protocol import consuming, groups
from lisa_consumer.delivery.core import Core

__all__ = ["Presence"]

logger = logging.getLogger(__name__)

_BEAT_S = 5.0
"""Well below the shortest idle time after which managers remove a consumer, which is 10 s."""

_END_S = 1.0
"""How long an ending worker may take to deregister. Managers remove workers that did not."""


class Presence:
    """The registration of a worker with its group: the group's consumers are the live ones.

    The worker registers when it joins the group. From then on this shows that it is alive, even if it reads nothing
    because no message is ready or all of its slots are taken.
    """

    def __init__(self, connection: AsyncConnection, core: Core) -> None:
        self._connection = connection
        self._core = core

    @asynccontextmanager
    async def shown(self) -> AsyncIterator[None]:
        """Shows that the worker is alive while the block runs. Then removes it from its group, unless it raised."""
        showing = asyncio.create_task(self.run())
        try:
            yield
        finally:
            await cancel_all(showing)
        await self.end()

    async def run(self) -> None:
        """Shows every few seconds that the worker is alive, until cancelled."""
        while True:
            await asyncio.sleep(_BEAT_S)
            if self._core.joined:
                await self._show()

    async def _show(self) -> None:
        flow = groups.show_alive([*self._core.joined], self._core.group, self._core.name)
        try:
            failure = await self._connection.run(flow)
        except LisaError as error:
            failure = error
        # The reader reports what is wrong with the server, and joins dropped groups again.
        if failure:
            self._log("cannot show that the worker is alive: %s", failure)

    async def end(self) -> None:
        """Removes the worker from its group, except from shards where it still holds something."""
        calls = [consuming.deregister(keys, self._core.group, self._core.name) for keys in self._core.joined]
        try:
            async with asyncio.timeout(_END_S):
                results = await self._connection.execute_each(calls) if calls else []
        except TimeoutError:
            results = [LisaError(f"no reply within {_END_S:g} s")]
        except LisaError as error:
            results = [error]
        for failure in [result for result in results if isinstance(result, LisaError)][:1]:
            self._log("cannot deregister: %s", failure)

    def _log(self, text: str, error: LisaError) -> None:
        logger.debug(text, error, extra=event("presence_failed", group=self._core.group, error=str(error)))
