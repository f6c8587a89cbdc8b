"""What the requests of one process share: the clients of Redis."""

import asyncio

from lisa_common.settings import Settings
from lisa_consumer import AsyncSettler, ConsumerSettings
from lisa_gateway.settings import GatewaySettings
from lisa_manager import AsyncAdmin
from lisa_producer import AsyncProducer, ProducerSettings

__all__ = ["Gateway"]


class Gateway:
    """The clients that all requests of a process share. It belongs to the event loop that first uses it.

    `stopping` is set once no new work should begin: polls then end with an empty answer.
    """

    def __init__(self, settings: GatewaySettings) -> None:
        self.settings = settings
        shared = settings.model_dump(include=set(Settings.model_fields))
        self.producer_settings = ProducerSettings(**shared, patience_s=settings.patience_s)
        self.consumer_settings = ConsumerSettings(**shared, patience_s=settings.patience_s)
        self.producer = AsyncProducer(settings=self.producer_settings)
        self.admin = AsyncAdmin(settings=settings, patience_s=settings.patience_s)
        self.settler = AsyncSettler(settings=self.consumer_settings)
        self.stopping = asyncio.Event()

    async def close(self) -> None:
        """Ends all polls with an empty answer, releases what is unsent, and closes the connections."""
        self.stopping.set()
        await self.settler.close()
        await self.producer.close()
        await self.admin.close()
