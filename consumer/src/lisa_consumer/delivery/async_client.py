"""The asyncio consumer."""

from collections.abc import Sequence
from typing import Any, Generic

from typing_extensions import TypeVar as DefaultTypeVar

from lisa_common.bodies import BodyType, Codec, check_codec
from lisa_common.client.async_connection import AsyncConnection
from lisa_common.model.delivery import Delivery
from lisa_common.protocol.consuming import AckOutcome, NackOutcome
from lisa_common.validation import Duration
from lisa_consumer.delivery.core import Core
from lisa_consumer.delivery.reading import AsyncReading
from lisa_consumer.delivery.values import read_values
from lisa_consumer.metrics import METRICS
from lisa_consumer.names import topic_names
from lisa_consumer.settings import ConsumerSettings

__all__ = ["AsyncConsumer"]

V = DefaultTypeVar("V", default=Any)


class AsyncConsumer(AsyncReading, Generic[V]):
    """Reads topics as one consumer of a group; the caller acks.

    Do not share a `Consumer` among threads, or an `AsyncConsumer` among tasks. The first read creates the group: the
    first group of a topic also gets the messages that were sent before. The URL and all other settings default to the
    environment or `lisa.toml`. Raises InvalidInput for an invalid name, and if there are no topics.

    With `body`, a type, each delivery has its decoded body in `value`; one whose body does not fit is rejected, and not
    returned. `codec` decodes bodies in place of JSON.

    While the server is away, calls retry for `settings.patience_s` seconds, then raise `Unreachable`. If a connection
    breaks between request and reply, `read`, `release` and `extend` repeat themselves: what a lost read has taken is
    given back first, and no attempt is spent. `ack`, `nack` and `reject` raise `OutcomeUnknown`: repeating them is
    safe, and the outcome is STALE if the first try had arrived.
    """

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
        self._settings = ConsumerSettings.of(settings, redis_url=url)
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
        """Reads up to `limit` deliveries of each topic, from 1 to 1,000.

        Waits up to `wait` for the first delivery; without `wait`, returns at once. `visibility` sets the length of the
        leases, in place of the topic's visibility timeout. `topics` names others than the consumer's own. Durations are
        seconds or timedeltas. Raises InvalidInput for values out of range.

        The read of an `AsyncConsumer` may be cancelled: what it has taken is given back before, unless that takes
        longer than a second.

        Handle and settle a delivery that is `alone` while nothing else runs: consumers died with it before.
        """
        names, block = topic_names(self._topics if topics is None else topics), self._settings.block_s
        flow = read_values(self._core, self._body, names, limit=limit, wait=wait, block=block, visibility=visibility)
        return await self._read(flow, wait)

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
