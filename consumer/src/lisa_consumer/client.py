"""The blocking consumer."""

from collections.abc import Sequence
from types import TracebackType
from typing import Self, TypeVar

from lisa_common.client.connection import Connection
from lisa_common.model.delivery import Delivery
from lisa_common.protocol.call import Flow
from lisa_common.protocol.consuming import AckOutcome, NackOutcome
from lisa_common.validation import Duration
from lisa_consumer.core import Core
from lisa_consumer.names import topic_names
from lisa_consumer.settings import ConsumerSettings

__all__ = ["Consumer"]

T = TypeVar("T")


class Consumer:
    """Reads topics as one consumer of a group, and acks by hand. `AsyncConsumer` is its asyncio twin.

    Not to be shared among threads. The group is made on first use: the first group of a topic also gets what was sent
    before. The URL, and all of `ConsumerSettings`, comes from the environment or `lisa.toml` where it is not given.
    Raises InvalidInput for a name that cannot be one, and for no topics.

    While the server is away, calls try again for `settings.patience_s` seconds, then raise `Unreachable`. A connection
    that breaks between request and reply raises `OutcomeUnknown`: deliveries of a lost read come again when their
    lease has run out, and acking again is safe (it may say "stale" of what the first try has done).
    """

    def __init__(
        self,
        topics: str | Sequence[str],
        group: str,
        *,
        url: str | None = None,
        name: str | None = None,
        settings: ConsumerSettings | None = None,
    ) -> None:
        self._settings = settings or ConsumerSettings.load(redis_url=url)
        self._topics = topic_names(topics)
        self._core = Core(self._settings.prefix, group, name)
        self._connection = Connection.of(
            self._settings, name="lisa-consumer", url=url, blocking_s=self._settings.block_s
        )

    @property
    def name(self) -> str:
        """The name by which the group knows this consumer."""
        return self._core.name

    def read(
        self, limit: int = 100, *, wait: Duration | None = None, visibility: Duration | None = None
    ) -> list[Delivery]:
        """Up to `limit` deliveries of each topic, at most 1,000.

        Waits up to `wait` for the first; without it, returns what is there. With `visibility` their leases are
        that long, however long the topic's visibility timeout is.

        A delivery that is `alone` should be handled while nothing else is: consumers died with it before.
        """
        block = self._settings.block_s
        return self._run(self._core.read(self._topics, limit=limit, wait=wait, block=block, visibility=visibility))

    def ack(self, *deliveries: Delivery) -> list[AckOutcome]:
        """Ends deliveries as handled, in a batch. One outcome for each; see `AckOutcome`."""
        return self._run(self._core.ack(deliveries))

    def nack(self, *deliveries: Delivery, delay: Duration | None = None, error: str = "") -> list[NackOutcome]:
        """Ends deliveries as failed: retried after `delay` or the policy's backoff, or dead when none are left."""
        return self._run(self._core.nack(deliveries, delay=delay, error=error))

    def reject(self, *deliveries: Delivery, error: str = "") -> list[NackOutcome]:
        """Ends deliveries for good: garbage, whatever attempts are left."""
        return self._run(self._core.nack(deliveries, delay=None, error=error, rejected=True))

    def release(self, *deliveries: Delivery) -> int:
        """Gives deliveries back that were not begun: ready again at once, no attempt spent. Says how many were."""
        return self._run(self._core.release(deliveries))

    def extend(self, *deliveries: Delivery, lease: Duration | None = None) -> list[bool]:
        """Renews leases: `lease` from now, or the topic's visibility timeout. False: the lease is lost."""
        return self._run(self._core.extend(deliveries, lease))

    def close(self) -> None:
        """Closes the connections. What is not settled comes again when its lease has run out."""
        self._connection.close()

    def _run(self, flow: Flow[T]) -> T:
        return self._connection.run(flow, patience_s=self._settings.patience_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
