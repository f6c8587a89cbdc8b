"""The batches of one call, filled from the caller's messages and sent one after another, by both producers.

If the caller's iterable raises, the messages taken before are not lost.
"""

import time
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Generator, Iterable, Iterator
from contextlib import aclosing, closing

from lisa_common.bodies import Codec
from lisa_common.client.async_connection import AsyncConnection
from lisa_common.client.connection import Connection
from lisa_common.errors import InvalidInput
from lisa_producer.batch import Batch
from lisa_producer.message import Message, with_codec
from lisa_producer.results import BatchResults

__all__ = ["AsyncMessageSource", "AsyncMessages", "MessageSource", "Messages", "async_send_batches", "send_batches"]

_AHEAD_S = 0.1
"""Most time for messages ahead, in seconds: meanwhile the caller waits for the results of the batch before."""

Messages = Iterable[Message]
AsyncMessages = Iterable[Message] | AsyncIterable[Message]


class MessageSource:
    """Iterates over messages. If the iterable raises, the iteration ends, and `error` has its exception.

    Raises InvalidInput for a value that is not iterable.
    """

    def __init__(self, messages: Messages) -> None:
        if not isinstance(messages, Iterable):
            raise InvalidInput("messages", messages, "an iterable of Message")
        self.messages = messages
        self.error: Exception | None = None

    def __iter__(self) -> Generator[Message]:
        try:
            yield from self.messages
        except Exception as error:  # noqa: BLE001 - the caller gets it, with the report
            self.error = error


class AsyncMessageSource:
    """The asyncio twin of `MessageSource`; takes both kinds of iterables."""

    def __init__(self, messages: AsyncMessages) -> None:
        if not isinstance(messages, Iterable | AsyncIterable):
            raise InvalidInput("messages", messages, "an iterable or an asynchronous iterable of Message")
        self._messages = messages
        self.error: Exception | None = None

    async def __aiter__(self) -> AsyncGenerator[Message]:
        try:
            if isinstance(self._messages, AsyncIterable):
                async for message in self._messages:
                    yield message
            else:
                for message in self._messages:
                    yield message
        except Exception as error:  # noqa: BLE001 - the caller gets it, with the report
            self.error = error


class _BatchFiller:
    """Fills a batch again and again."""

    def __init__(self, batch: Batch, messages: Iterator[Message], codec: Codec | None) -> None:
        self._batch = batch
        self._messages = messages
        self._codec = codec
        self._error: Exception | None = None

    def fill(self) -> None:
        """Adds messages until the batch is full, or there are no more. Raises what `fill_ahead` has met."""
        if self._error is not None:
            raise self._error
        self._add(None)

    def fill_ahead(self) -> None:
        """As `fill`, while a call is under way: for a short time, and without errors, which `fill` raises later."""
        began = time.monotonic()
        try:
            self._add(lambda: time.monotonic() - began > _AHEAD_S)
        except Exception as error:  # noqa: BLE001 - what the caller's values raise is no error of the call under way
            self._error = error
        finally:
            self._batch.sender.filling_s += time.monotonic() - began

    def _add(self, is_over: Callable[[], bool] | None) -> None:
        if self._batch.is_full:
            return
        add, codec = self._batch.add, self._codec
        for message in self._messages:
            if add(with_codec(message, codec) if codec else message) or (is_over and is_over()):
                return


def send_batches(
    connection: Connection, patience_s: float, batch: Batch, source: MessageSource, codec: Codec | None
) -> Generator[BatchResults]:
    """Yields the results of each batch, until there are no more messages."""
    with closing(iter(source)) as messages:
        filler = _BatchFiller(batch, messages, codec)
        # Any other iterable may wait for the results of what it has yielded.
        meanwhile = filler.fill_ahead if isinstance(source.messages, list | tuple) else None
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
