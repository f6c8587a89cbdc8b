"""How consumers run flows, and what they give back: where blocking and asyncio ones differ."""

import asyncio
from contextlib import suppress
from typing import TypeVar

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.client.closing import AsyncClosing, Closing
from lisa_common.client.connection import Connection
from lisa_common.errors import LisaError
from lisa_common.protocol.call import Flow
from lisa_common.validation import Duration, duration_ms
from lisa_consumer.delivery.core import Core
from lisa_consumer.settings import ConsumerSettings

__all__ = ["AsyncReading", "Reading"]

T = TypeVar("T")

_GIVE_BACK_S = 1.0
"""How long a cancelled read, or a close, may take to give back what arrived for nobody."""


class Reading(Closing):
    """Runs the flows of a blocking consumer."""

    _settings: ConsumerSettings
    _core: Core
    _connection: Connection

    def close(self) -> None:
        """Closes the connections; later calls raise Closed.

        Deliveries that are not settled come again when their leases have run out; those of a read that was interrupted
        are given back.
        """
        with suppress(LisaError):
            self._connection.run(self._core.give_back())
        self._connection.close()

    def _read(self, flow: Flow[T], wait: Duration | None) -> T:
        return self._connection.run(flow, patience_s=self._settings.patience_s + _seconds(wait))

    def _run(self, flow: Flow[T]) -> T:
        return self._connection.run(flow, patience_s=self._settings.patience_s)


class AsyncReading(AsyncClosing):
    """Runs the flows of an asyncio consumer, whose calls may be cancelled."""

    _settings: ConsumerSettings
    _core: Core
    _connection: AsyncConnection

    async def close(self) -> None:
        """Closes the connections; later calls raise Closed.

        Deliveries that are not settled come again when their leases have run out.
        """
        try:
            await self._give_back()
        finally:
            await self._connection.close()

    async def _read(self, flow: Flow[T], wait: Duration | None) -> T:
        try:
            return await self._connection.run(flow, patience_s=self._settings.patience_s + _seconds(wait))
        except asyncio.CancelledError:
            await self._give_back()
            raise

    async def _run(self, flow: Flow[T]) -> T:
        return await self._connection.run(flow, patience_s=self._settings.patience_s)

    async def _give_back(self) -> None:
        """Releases what arrived for nobody. What this does not manage, the next read, or the close, tries again."""
        with suppress(LisaError, TimeoutError):
            async with asyncio.timeout(_GIVE_BACK_S):
                await self._connection.run(self._core.give_back())


def _seconds(wait: Duration | None) -> float:
    """The patience of a read begins when its wait ends."""
    return 0.0 if wait is None else duration_ms("wait", wait) / 1000
