"""Has the server know which deliveries have begun, so that a process that dies charges no others with an attempt."""

import asyncio
import logging
from collections.abc import Callable, Sequence

from lisa_common.aio import AsyncConnection
from lisa_common.delivery import Delivery
from lisa_common.errors import LisaError
from lisa_common.protocol.consuming import Begun
from lisa_consumer.core import Core

__all__ = ["Beginnings"]

logger = logging.getLogger(__name__)

_ANSWER_S = 1.0
"""How long a handler waits for its mark at most. Without one, a crash gives its message one more delivery."""

_ORDER = (Begun.NOT, Begun.YES, Begun.BESIDE)


class Beginnings:
    """Marks deliveries. While one batch is on its way to the server, the next one gathers.

    What begins as soon as it is read is marked by the read itself. What has to wait is marked here, before its handler
    is called: a handler may end the process in its first moment.
    """

    def __init__(self, connection: AsyncConnection, core: Core, begin: Callable[[Delivery], None]) -> None:
        self._connection = connection
        self._core = core
        self._begin = begin
        self._marks: dict[tuple[str, str, str], tuple[Delivery, Begun]] = {}
        self._beginning: dict[tuple[str, str, str], Delivery] = {}
        """What begins once it is marked."""
        self._wake = asyncio.Event()

    def begin(self, delivery: Delivery, begun: Begun = Begun.YES) -> None:
        """Has a delivery begin, at once if the server takes it for begun already."""
        if delivery.entry.begun and begun is Begun.YES:
            self._begin(delivery)
            return
        self._beginning[delivery.place] = delivery
        self.mark([delivery], begun)

    def mark(self, deliveries: Sequence[Delivery], begun: Begun) -> None:
        """Has deliveries marked soon."""
        for delivery in deliveries:
            self._marks[delivery.place] = delivery, begun
        if deliveries:
            self._wake.set()

    def take_back(self) -> list[Delivery]:
        """What has not begun, and will not."""
        taken = list(self._beginning.values())
        self._beginning.clear()
        return taken

    async def run(self) -> None:
        """Marks until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            marks, self._marks = self._marks, {}
            try:
                async with asyncio.timeout(_ANSWER_S):
                    await self._tell(list(marks.values()))
            except (LisaError, TimeoutError) as error:
                logger.debug("%d deliveries could not be marked as begun: %s", len(marks), error)
            for place in marks:
                if delivery := self._beginning.pop(place, None):
                    self._begin(delivery)

    async def _tell(self, marks: list[tuple[Delivery, Begun]]) -> None:
        for begun in _ORDER:
            if some := [delivery for delivery, mark in marks if mark is begun]:
                await self._connection.run(self._core.mark(some, begun))
