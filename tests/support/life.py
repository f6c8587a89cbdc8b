"""The whole life of messages, by programs of which one may be refused commands."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from lisa_common.model.rights import RoleName
from lisa_consumer import AsyncConsumer, ConsumerSettings, Delivery, Reject, Worker
from lisa_manager import AsyncAdmin, ManagerSettings
from lisa_producer import AsyncProducer, Message, ProducerSettings
from support.running import managed, new_worker, working
from support.waiting import wait_until_async

__all__ = ["Life"]

TOPIC = "orders"
_HANDLED = {"now": 1, "later": 1, "failing": 2, "rejected": 1, "lost": 1}
"""How often each message is handled, at least. Another one expires, unless it is read in its only millisecond."""


@dataclass(frozen=True)
class Life:
    """Sends, promotes, handles, retries, rejects and takes back messages; each program connects by a URL of its own."""

    prefix: str
    urls: Mapping[RoleName, str]
    admin_url: str
    shards: int = 1

    async def live(self, *, patience_s: float = 120) -> None:
        """Returns once every message has ended as it should. Raises the errors of a program, and TimeoutError."""
        async with AsyncAdmin(settings=ManagerSettings(redis_url=self.admin_url, prefix=self.prefix)) as admin:
            # On a busy machine leases may lapse again and again.
            await admin.set_policy(TOPIC, backoff_base_ms=100, backoff_jitter=0, visibility_ms=1_000, max_retries=100)
            if self.shards > 1:
                await admin.reshard(TOPIC, self.shards)
            async with managed(self.urls[RoleName.MANAGER], self.prefix, poll_s=0.1):
                worker, handled = self._worker()
                async with asyncio.timeout(patience_s):
                    await self._lose()

                async def has_ended() -> bool:
                    [sizes] = await admin.sizes(TOPIC)
                    held = sizes.waiting + sizes.retry + sizes.ready
                    is_handled = all(handled.get(id, 0) >= times for id, times in _HANDLED.items())
                    return held == 0 and sizes.garbage == 2 - ("expiring" in handled) and is_handled

                async with working(worker), asyncio.timeout(patience_s):
                    await self._send()
                    await wait_until_async(has_ended, patience_s)  # type: ignore[arg-type] # takes coroutine functions

    async def _lose(self) -> None:
        """A consumer dies with a delivery."""
        settings = ProducerSettings(redis_url=self.urls[RoleName.PRODUCER], prefix=self.prefix)
        async with AsyncProducer(settings=settings) as producer:
            await producer.send(TOPIC, b"x", id="lost")
        async with self.consumer() as consumer:
            while not await consumer.read(wait=1):
                pass

    def consumer(self) -> AsyncConsumer:
        """A consumer of the topic."""
        settings = ConsumerSettings(redis_url=self.urls[RoleName.CONSUMER], prefix=self.prefix)
        return AsyncConsumer(TOPIC, "billing", settings=settings)

    async def _send(self) -> None:
        settings = ProducerSettings(redis_url=self.urls[RoleName.PRODUCER], prefix=self.prefix)
        async with AsyncProducer(settings=settings) as producer:
            await producer.send(TOPIC, b"x", id="now")
            await producer.send(TOPIC, b"x", id="later", delay=0.3)
            await producer.send(TOPIC, b"x", id="failing")
            await producer.send_many(
                TOPIC, [Message(body=b"x", id="rejected"), Message(body=b"x", id="expiring", delay=0.2, ttl=0.001)]
            )
            await producer.send(TOPIC, b"x", id="cancelled", delay=60)
            await producer.cancel(TOPIC, "cancelled")

    def _worker(self) -> tuple[Worker, dict[str, int]]:
        worker, handled = new_worker(self.urls[RoleName.CONSUMER], self.prefix, drain_s=0.1), dict[str, int]()

        @worker.on(TOPIC)
        async def handle(delivery: Delivery) -> None:
            handled[delivery.id] = handled.get(delivery.id, 0) + 1
            if delivery.id == "failing" and handled[delivery.id] == 1:
                raise ValueError("the first attempt fails")
            if delivery.id == "rejected":
                raise Reject("not wanted")

        return worker, handled
