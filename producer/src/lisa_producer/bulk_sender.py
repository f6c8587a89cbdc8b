"""Sending many messages to any topics: bounded memory, invalid messages reported, all others sent."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from lisa_common.errors import UNDONE, InvalidInput, LisaError
from lisa_producer.client import Producer
from lisa_producer.message import Message
from lisa_producer.results import BatchResults, PartialSend, SendOutcome, SendReport, SendResult

__all__ = ["BulkSender"]

K = TypeVar("K")

_MAX_MESSAGES, _MAX_BYTES = 20_000, 16 * 1024 * 1024
"""Limits of what is held in memory, over all topics. Messages of many shards fill a call to each."""


@dataclass(slots=True)
class BulkSender(Generic[K]):
    """Collects messages and sends them topic by topic; a key, such as a line number, identifies each to the caller.

    `on_error` receives each message that cannot be sent; an error that it raises ends the load. `progress` receives the
    sizes of processed messages, `on_result` topic and result of each message that was sent or known. `before` is called
    before so many messages are sent, and may wait. Where a flush ends early, `left` has keys of what is not settled.
    """

    producer: Producer
    on_error: Callable[[K, LisaError], object]
    progress: Callable[[int], object] = lambda _: None
    on_result: Callable[[str, SendResult], object] | None = None
    before: Callable[[int], object] = lambda _: None
    most_messages: int | None = None
    """Most messages that are held in memory."""
    report: SendReport = field(default_factory=SendReport)
    stored: list[K] = field(default_factory=list)
    """Of the latest flush: the keys of messages that are stored, or may be."""
    _collected: dict[str, list[tuple[K, Message]]] = field(default_factory=dict)
    _messages: int = 0
    _bytes: int = 0

    def add(self, key: K, topic: str, message: Message, size: int) -> None:
        """Adds a message of `size` bytes; flushes at the limits."""
        self._collected.setdefault(topic, []).append((key, message))
        self._messages += 1
        self._bytes += size
        if self._messages >= (self.most_messages or _MAX_MESSAGES) or self._bytes >= _MAX_BYTES:
            self.flush()

    def refuse(self, key: K, error: LisaError) -> None:
        """Counts and reports input that is not a valid message."""
        self.report.failed += 1
        self.report.first_error = self.report.first_error or error
        self.on_error(key, error)

    @property
    def left(self) -> Iterator[K]:
        """The keys of messages that were collected, and neither confirmed as sent or known, nor refused as invalid."""
        return (key for messages in self._collected.values() for key, _ in messages)

    def flush(self) -> None:
        """Sends the collected messages; raises LisaError when the server refuses or is unreachable for too long."""
        self.stored = []
        while self._collected:
            topic, messages = next(iter(self._collected.items()))
            self.before(len(messages))
            self._send_to(topic, messages)
            del self._collected[topic]
        self.progress(self._bytes)
        self._messages = self._bytes = 0

    def _send_to(self, topic: str, messages: list[tuple[K, Message]]) -> None:
        """Sends messages to a topic, and removes from the list what is settled."""
        try:
            sent = [message for _, message in messages]
            self.producer.send_many(topic, sent, on_batch=lambda results: self._take(topic, messages, results))
        except PartialSend as error:
            raise error.__cause__ or error from None
        except KeyboardInterrupt:
            # Of the call that it ended, the outcome is unknown.
            self.stored += [key for key, _ in messages]
            raise

    def _take(self, topic: str, messages: list[tuple[K, Message]], results: BatchResults) -> None:
        outcomes = results.outcomes()
        self.report.sent += outcomes[SendOutcome.SENT]
        self.report.replaced += outcomes[SendOutcome.REPLACED]
        self.report.duplicates += outcomes[SendOutcome.DUPLICATE]
        batch, left = messages[: len(results)], []
        if self.on_result or outcomes[SendOutcome.FAILED]:
            for pair, result in zip(batch, results, strict=True):
                if isinstance(result.error, InvalidInput):
                    self.refuse(pair[0], result.error)
                elif result.error is not None:
                    left.append(pair)
                elif self.on_result:
                    self.on_result(topic, result)
                if not isinstance(result.error, (InvalidInput, *UNDONE)):
                    self.stored.append(pair[0])
        else:
            self.stored += [key for key, _ in batch]
        messages[: len(results)] = left
