"""Fills batches from the messages of a caller, also while the server stores the batch before."""

import time
from collections.abc import Callable, Iterator

from lisa_common.bodies import Codec
from lisa_producer.batch import Batch
from lisa_producer.message import Message, with_codec

__all__ = ["BatchFiller", "is_ready"]

_AHEAD_S = 0.1
"""Most time for messages ahead, in seconds: meanwhile the caller waits for the results of the batch before."""


def is_ready(messages: object) -> bool:
    """Whether messages can be taken while earlier ones are being sent.

    An iterable may wait for the results of what it has yielded, or for anything else; a list or a tuple does not.
    """
    return isinstance(messages, list | tuple)


class BatchFiller:
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
            self._batch.filling_s += time.monotonic() - began

    def _add(self, is_over: Callable[[], bool] | None) -> None:
        if self._batch.is_full:
            return
        add, codec = self._batch.add, self._codec
        for message in self._messages:
            if add(with_codec(message, codec) if codec else message) or (is_over and is_over()):
                return
