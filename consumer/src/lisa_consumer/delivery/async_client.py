"""The asyncio consumer."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

from typing_extensions import TypeVar as DefaultTypeVar

from lisa_common.bodies import BodyType, Codec, check_codec
from lisa_common.client.async_connection import AsyncConnection
from lisa_common.client.closing import AsyncClosing
from lisa_common.errors import LisaError
from lisa_common.model.delivery import Delivery
from lisa_common.protocol.call import Flow
from lisa_common.protocol.consuming import AckOutcome, NackOutcome
from lisa_common.validation import Duration, duration_ms
from lisa_consumer.delivery.core import Core
from lisa_consumer.delivery.values import read_values
from lisa_consumer.metrics import METRICS
from lisa_consumer.names import topic_names
from lisa_consumer.settings import ConsumerSettings

__all__ = ["AsyncConsumer"]

T = TypeVar("T")
V = DefaultTypeVar("V", default=Any)

_GIVE_BACK_S = 1.0
"""How long a cancelled read, or a close, may take to give back what arrived for nobody."""


class AsyncConsumer(AsyncClosing, Generic[V]):
    """Reads topics as one consumer of a group, in one task. Its guarantees are those of `Consumer`."""

    def __init__(
        self,
        topics: str | Sequence[str],
        group: str,
        *,
        url: str | None = None,
        name: str | None = None,
        body: type[V] | None = None,
        codec: Codec | None = None,
        settings: ConsumerSettings | None = None,
    ) -> None:
        self._settings = settings or ConsumerSettings.load(redis_url=url)
        self._topics = topic_names(topics)
        METRICS.ask()
        self._core = Core(self._settings.prefix, group, name, codec=check_codec(codec))
        self._core.app_release = self._settings.release
        self._body: BodyType[V] | None = None if body is None else BodyType(body, codec)
        self._connection = AsyncConnection.of(
            self._settings, name="lisa-consumer", url=url, blocking_s=self._settings.block_s, wakes=True
        )

    @property
    def name(self) -> str:
        """The name by which the group knows this consumer."""
        return self._core.name

    async def read(
        self,
        limit: int = 100,
        *,
        wait: Duration | None = None,
        visibility: Duration | None = None,
        topics: str | Sequence[str] | None = None,
    ) -> list[Delivery[V]]:
        """Reads up to `limit` deliveries of each topic; see `Consumer.read`.

        A read may be cancelled: what it has taken is given back before, unless that takes longer than a second.
        """
        names, block = topic_names(self._topics if topics is None else topics), self._settings.block_s
        flow = read_values(self._core, self._body, names, limit=limit, wait=wait, block=block, visibility=visibility)
        try:
            return await self._run(flow, wait)
        except asyncio.CancelledError:
            await self._give_back()
            raise

    async def ack(self, *deliveries: Delivery) -> list[AckOutcome]:
        """Acks handled deliveries, and sends what follows them. Returns one outcome for each; see `AckOutcome`."""
        return await self._run(self._core.ack(deliveries))

    async def nack(
        self, *deliveries: Delivery, delay: Duration | None = None, error: str | BaseException = ""
    ) -> list[NackOutcome]:
        """Nacks failed deliveries: they are retried after `delay` or the policy's backoff, or become garbage.

        `error`, text or an exception, is stored with the failure. Raises InvalidInput.
        """
        return await self._run(self._core.nack(deliveries, delay=delay, error=error))

    async def reject(self, *deliveries: Delivery, error: str | BaseException = "") -> list[NackOutcome]:
        """Turns deliveries into garbage, whatever attempts are left."""
        return await self._run(self._core.nack(deliveries, delay=None, error=error, rejected=True))

    async def release(self, *deliveries: Delivery) -> int:
        """Releases deliveries that were not begun: they are ready at once, no attempt is spent. Returns how many."""
        return await self._run(self._core.release(deliveries))

    async def extend(self, *deliveries: Delivery, lease: Duration | None = None) -> list[bool]:
        """Renews leases, to `lease` from now or the topic's visibility timeout. Returns False for each lost lease."""
        return await self._run(self._core.extend(deliveries, lease))

    async def close(self) -> None:
        """Closes the connections; later calls raise Closed.

        Deliveries that are not settled come again when their leases have run out.
        """
        try:
            await self._give_back()
        finally:
            await self._connection.close()

    async def _give_back(self) -> None:
        """Releases what arrived for nobody. What this does not manage, the next read, or the close, tries again."""
        with suppress(LisaError, TimeoutError):
            async with asyncio.timeout(_GIVE_BACK_S):
                await self._connection.run(self._core.give_back())

    async def _run(self, flow: Flow[T], wait: Duration | None = None) -> T:
        # The patience begins when the wait ends.
        patience_s = self._settings.patience_s + (0 if wait is None else duration_ms("wait", wait) / 1000)
        return await self._connection.run(flow, patience_s=patience_s)
