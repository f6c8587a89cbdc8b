"""Loads many messages of any topics: bounded memory, a complaint for each bad one, the others sent all the same."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from lisa_common.errors import InvalidInput, LisaError
from lisa_producer.client import Producer
from lisa_producer.message import Message, PartialSend, SendReport, SendResult

__all__ = ["Loader"]

K = TypeVar("K")

_MESSAGES, _BYTES = 5_000, 16 * 1024 * 1024
"""How much is gathered, over all topics, before it is sent."""


@dataclass(slots=True)
class Loader(Generic[K]):
    """Gathers messages and sends them topic by topic; a key, say the number of a line, names each to its caller.

    `complain` is told of each that cannot be sent; what it raises ends the load. `progress` is told the sizes of what
    has been dealt with.
    """

    producer: Producer
    complain: Callable[[K, LisaError], object]
    progress: Callable[[int], object] = lambda _: None
    report: SendReport = field(default_factory=SendReport)
    _gathered: dict[str, list[tuple[K, Message]]] = field(default_factory=dict)
    _messages: int = 0
    _bytes: int = 0

    def add(self, key: K, topic: str, message: Message, size: int) -> None:
        """Takes a message, and sends when enough are gathered; see `flush`."""
        self._gathered.setdefault(topic, []).append((key, message))
        self._messages += 1
        self._bytes += size
        if self._messages >= _MESSAGES or self._bytes >= _BYTES:
            self.flush()

    def refuse(self, key: K, error: LisaError) -> None:
        """Counts and complains of what could not even be made a message."""
        self.report.failed += 1
        self.report.first_error = self.report.first_error or error
        self.complain(key, error)

    def flush(self) -> None:
        """Sends what is gathered; raises PartialSend when the server is away for too long, or refuses."""
        gathered, self._gathered = self._gathered, {}
        for topic, messages in gathered.items():
            self._send_to(topic, messages)
        self.progress(self._bytes)
        self._messages = self._bytes = 0

    def _send_to(self, topic: str, messages: list[tuple[K, Message]]) -> None:
        def take(result: SendResult) -> None:
            if isinstance(result.error, InvalidInput):
                self.refuse(messages[result.position][0], result.error)
            elif result.error is None:
                self.report.count(result)

        try:
            self.producer.send_many(topic, (message for _, message in messages), on_result=take)
        except PartialSend as error:
            raise PartialSend(topic, self.report) from error.__cause__
