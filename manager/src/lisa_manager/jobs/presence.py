"""Shows all programs that this manager runs, and when it has ended."""

import asyncio
import os
import socket
from contextlib import suppress

from lisa_common import __version__
from lisa_common.client.async_connection import AsyncConnection
from lisa_common.errors import LisaError
from lisa_common.protocol import managers
from lisa_common.protocol.consuming import server_time
from lisa_common.protocol.workers import forget_silent

__all__ = ["Presence"]

_FORGET_EVERY_MS = 600_000
"""Workers are forgotten after an hour of silence: to look for them more often would read all states for nothing."""

_END_S = 1.0
"""How long an ending manager may take to say so. Its sign expires if it does not."""


class Presence:
    """The sign of life of one manager; see `lisa_common.protocol.managers`."""

    def __init__(self, connection: AsyncConnection, prefix: str) -> None:
        self._connection, self._prefix = connection, prefix
        self._forgets_at_ms = 0
        self._name = f"{socket.gethostname()}:{os.getpid()} {__version__}"

    async def turn(self) -> None:
        """Renews the sign, and at times forgets workers that have long been silent. Raises LisaError."""
        now: int = await self._connection.call(server_time())
        await self._connection.run(managers.renew(self._prefix, self._name, now))
        if now >= self._forgets_at_ms:
            self._forgets_at_ms = now + _FORGET_EVERY_MS
            await self._connection.run(forget_silent(self._prefix))

    async def end(self) -> None:
        """Withdraws the sign."""
        with suppress(LisaError, TimeoutError):
            async with asyncio.timeout(_END_S):
                now: int = await self._connection.call(server_time())
                await self._connection.run(managers.withdraw(self._prefix, self._name, now))
