"""Looks whether a manager runs, for programs whose messages wait for what managers do."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from lisa_common.errors import LisaError
from lisa_common.logs import event

__all__ = ["ManagerWatch"]

logger = logging.getLogger(__name__)

_LOOK_S = 5.0
"""How often it looks. An absence counts from the second look that finds it: a manager may just be restarting."""


class ManagerWatch:
    """Logs once when no manager runs, and once when one runs again."""

    def __init__(self, look: Callable[[], Awaitable[str]]) -> None:
        self._look = look
        """Returns what `find_absence` returns."""
        self._misses = 0
        """Successive looks that found no manager."""
        self.absence = ""
        """One line with the command to run while no manager runs, else ""."""

    async def run(self) -> None:
        """Looks every few seconds, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            try:
                found = await self._look()
            except LisaError:
                # Others report what is wrong with the server.
                continue
            self._misses = self._misses + 1 if found else 0
            if self._misses > 1 and not self.absence:
                logger.warning("%s", found, extra=event("manager_missing"))
                self.absence = found
            elif self.absence and not found:
                logger.info("a manager runs again", extra=event("manager_back"))
                self.absence = ""
