"""Fills batches from the messages of a caller, also while the server stores the batch before."""

import time
from collections.abc import AsyncIterator, Iterator

from lisa_common.bodies import Codec
from lisa_common.errors import InvalidInput
from lisa_producer.batch import Batch
from lisa_producer.message import Message, with_codec

__all__ = ["AsyncBatchFiller", "BatchFiller", "is_ahead"]


def is_ahead(ahead: object, messages: object) -> bool:
    """Whether to take messages while earlier ones are being sent; by default from lists and tuples.

    Other iterables may wait for the results of what they have yielded. Raises InvalidInput.
    """
    if ahead is None:
        return isinstance(messages, list | tuple)
    if ahead not in (True, False):
        raise InvalidInput("ahead", ahead, "True or False")
    return bool(ahead)


class BatchFiller:
    """Fills a batch again and again."""

    def __init__(self, batch: Batch, messages: Iterator[Message], codec: Codec | None) -> None:
        self._batch = batch
        self._messages = messages
        self._codec = codec

    def fill(self) -> None:
        """Adds messages until the batch is full, or there are no more."""
        began = time.monotonic()
        for message in self._messages:
            if self._batch.add(with_codec(message, self._codec)):
                break
        self._batch.filling_s += time.monotonic() - began


class AsyncBatchFiller:
    """The asyncio twin of `BatchFiller`."""

    def __init__(self, batch: Batch, messages: AsyncIterator[Message], codec: Codec | None) -> None:
        self._batch = batch
        self._messages = messages
        self._codec = codec

    async def fill(self) -> None:
        """Adds messages until the batch is full, or there are no more."""
        began = time.monotonic()
        async for message in self._messages:
            if self._batch.add(with_codec(message, self._codec)):
                break
        self._batch.filling_s += time.monotonic() - began
