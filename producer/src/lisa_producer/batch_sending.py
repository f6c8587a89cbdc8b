"""The batches of one call, sent one after another: where blocking and asyncio producers differ."""

from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing, closing

from lisa_common.bodies import Codec
from lisa_common.client.async_connection import AsyncConnection
from lisa_common.client.connection import Connection
from lisa_producer.batch import Batch
from lisa_producer.batch_filler import BatchFiller, is_ready
from lisa_producer.message import with_codec
from lisa_producer.message_source import AsyncMessageSource, MessageSource
from lisa_producer.results import BatchResults

__all__ = ["async_send_batches", "send_batches"]


def send_batches(
    connection: Connection, patience_s: float, batch: Batch, source: MessageSource, codec: Codec | None
) -> Generator[BatchResults]:
    """Yields the results of each batch, until there are no more messages."""
    with closing(iter(source)) as messages:
        filler = BatchFiller(batch, messages, codec)
        meanwhile = filler.fill_ahead if is_ready(source.messages) else None
        filler.fill()
        while batch.size:
            yield connection.run(batch.flush(), patience_s=patience_s, meanwhile=meanwhile)
            filler.fill()


async def async_send_batches(
    connection: AsyncConnection, patience_s: float, batch: Batch, source: AsyncMessageSource, codec: Codec | None
) -> AsyncGenerator[BatchResults]:
    """Yields the results of each batch, until there are no more messages."""
    async with aclosing(aiter(source)) as messages:
        async for message in messages:
            if batch.add(with_codec(message, codec)):
                yield await connection.run(batch.flush(), patience_s=patience_s)
    if batch.size:
        yield await connection.run(batch.flush(), patience_s=patience_s)
